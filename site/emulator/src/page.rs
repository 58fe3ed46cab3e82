//! Pages: what a browser reads from them, and whether they are what was asked for.

use crate::interaction::Interaction;
use memchr::memmem;
use std::ops::RangeInclusive;

/// A page as it came.
pub struct Page<'a>(pub &'a [u8]);

impl<'a> Page<'a> {
    pub fn has(&self, text: &str) -> bool {
        memmem::find(self.0, text.as_bytes()).is_some()
    }

    fn after(&self, mark: &str) -> Option<&'a [u8]> {
        memmem::find(self.0, mark.as_bytes()).map(|place| &self.0[place + mark.len()..])
    }

    /// The number that stands after the first such mark.
    pub fn number(&self, mark: &str) -> Option<u32> {
        self.after(mark).and_then(leading_number)
    }

    /// All numbers that stand after such a mark.
    pub fn numbers(&self, mark: &str) -> Vec<u32> {
        let places = memmem::find_iter(self.0, mark.as_bytes());
        places.filter_map(|place| leading_number(&self.0[place + mark.len()..])).collect()
    }

    /// The items that the page links to.
    pub fn items(&self) -> Vec<u32> {
        self.numbers("I_ID=")
    }

    /// The amount that stands after the first such mark.
    fn cents(&self, mark: &str) -> Option<u64> {
        let amount = self.after(mark)?;
        let point = memchr::memchr(b'.', amount)?;
        let cents = amount.get(point + 1..point + 3)?;
        let whole = std::str::from_utf8(&amount[..point]).ok()?.parse::<u64>().ok()?;
        Some(whole * 100 + u64::from(leading_number(cents)?))
    }

    /// Item and quantity of each line of a cart that is not to be changed.
    pub fn lines(&self) -> Vec<(u32, u32)> {
        const ROW: &[u8] = b"<tr><td>";
        let Some(table) = self.after("<table id=\"cart\">") else { return Vec::new() };
        let table = &table[..memmem::find(table, b"</table>").unwrap_or(table.len())];
        let rows = memmem::find_iter(table, ROW).map(|place| Page(&table[place + ROW.len()..]));
        rows.filter_map(|row| Some((row.number("I_ID=")?, leading_number(row.0)?))).collect()
    }

    /// Whether the total is the sum of what is told before it.
    fn adds_up(&self) -> bool {
        let parts = ["Subtotal: $", "tax: $", "shipping: $"].map(|mark| self.cents(mark));
        let sum = parts.into_iter().sum::<Option<u64>>();
        sum.is_some() && sum == self.cents("id=\"total\">Total: $")
    }

    /// The address of each picture, and of the style sheet.
    pub fn parts(&self) -> Vec<&'a str> {
        let mut found = Vec::new();
        for mark in ["href=\"/static/", "src=\"/"] {
            let slash = mark.find('/').expect("each mark has one");
            for place in memmem::find_iter(self.0, mark.as_bytes()) {
                let rest = &self.0[place + slash..];
                if let Some(end) = memchr::memchr(b'"', rest)
                    && let Ok(address) = std::str::from_utf8(&rest[..end])
                    && !found.contains(&address)
                {
                    found.push(address);
                }
            }
        }
        found
    }
}

fn leading_number(text: &[u8]) -> Option<u32> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&text[..digits]).ok()?.parse().ok()
}

/// What a page has to show, beside what all pages of its interaction have.
#[derive(Default, Debug)]
pub struct Expected {
    pub subject: Option<&'static str>,
    pub item: Option<u32>,
    pub cart: Option<u32>,
    pub customer_is_known: bool,
    /// The name that the customer is known by.
    pub customer: Option<String>,
    /// An item's new price.
    pub price: Option<String>,
    /// Item and quantity of each line of an order.
    pub lines: Option<Vec<(u32, u32)>>,
    pub search: Option<String>,
}

/// Says what is wrong with a page, if something is.
pub fn complaint(interaction: Interaction, page: &Page, expected: &Expected) -> Option<String> {
    if !page.has(&format!("<title>Bookstore: {}</title>", interaction.title())) {
        return Some("another page's title".into());
    }
    if !page.0.ends_with(b"</footer>\n</body></html>\n") {
        return Some("the page's end is missing".into());
    }
    for mark in needed(interaction) {
        if !page.has(mark) {
            return Some(format!("no {mark}"));
        }
    }
    if let Some(item) = expected.item
        && !page.has(&format!("id=\"item\">Item {item}<"))
    {
        return Some(format!("not about item {item}"));
    }
    if let Some(cart) = expected.cart
        && page.number("id=\"number\">Cart ") != Some(cart)
    {
        return Some(format!("not of cart {cart}"));
    }
    if let Some(subject) = expected.subject
        && !page.has(subject)
    {
        return Some(format!("not about {subject}"));
    }
    if let Some(search) = &expected.search
        && !page.has(&format!("Searched for {search}<"))
    {
        return Some(format!("not the result of {search}"));
    }
    person(interaction, page, expected)
        .or_else(|| order(interaction, page, expected))
        .or_else(|| rows(interaction, page, expected))
}

/// Whose page it is.
fn person(interaction: Interaction, page: &Page, expected: &Expected) -> Option<String> {
    if expected.customer_is_known && interaction == Interaction::Home && !page.has("id=\"greeting\"") {
        return Some("no greeting".into());
    }
    if let Some(customer) = &expected.customer
        && !page.has(&format!(" ({customer})<br>"))
    {
        return Some(format!("not of customer {customer}"));
    }
    None
}

/// What it costs, and what is bought. Prices change between pages, as there are clerks; what was in the cart does not.
fn order(interaction: Interaction, page: &Page, expected: &Expected) -> Option<String> {
    if let Some(price) = &expected.price
        && !page.has(&format!("<p>Price: ${price}</p>"))
    {
        return Some("not the price that was set".into());
    }
    if matches!(interaction, Interaction::BuyRequest | Interaction::BuyConfirm) && !page.adds_up() {
        return Some("the total is not the sum".into());
    }
    if let Some(lines) = &expected.lines
        && page.lines() != *lines
    {
        return Some("not what was in the cart".into());
    }
    None
}

/// Lists have as many links as they say, and as many as they should.
fn rows(interaction: Interaction, page: &Page, expected: &Expected) -> Option<String> {
    let allowed: RangeInclusive<u32> = match interaction {
        Interaction::NewProducts | Interaction::BestSellers => 1..=50,
        // Only titles are drawn from words of which some begin none.
        Interaction::SearchResult if expected.search.as_ref().is_some_and(|search| search.starts_with("title ")) => {
            0..=50
        }
        Interaction::SearchResult => 1..=50,
        _ => return None,
    };
    let Some(told) = page.number("id=\"found\">") else { return Some("no number of items".into()) };
    let Some(list) = page.after("<table id=\"items\">") else { return Some("no list of items".into()) };
    let listed = memmem::find_iter(list, b"I_ID=").count();
    if !allowed.contains(&told) || usize::try_from(told) != Ok(listed) {
        return Some(format!("{listed} items listed, {told} told"));
    }
    None
}

fn needed(interaction: Interaction) -> &'static [&'static str] {
    match interaction {
        Interaction::Home => &["id=\"subjects\"", "new_products", "best_sellers", "<h2>Today's offers</h2>"],
        Interaction::ShoppingCart => &["id=\"cart\"", "name=\"QTY_", "id=\"subtotal\"", "customer_registration"],
        Interaction::CustomerRegistration => &["name=\"UNAME\"", "name=\"BIRTHDATE\""],
        Interaction::BuyRequest => &["id=\"customer\"", "id=\"total\"", "name=\"CC_NUMBER\"", "name=\"C_ID\""],
        Interaction::BuyConfirm => &["id=\"order\">Order ", "id=\"customer\"", "id=\"total\""],
        Interaction::OrderInquiry => &["order_display", "name=\"PASSWD\""],
        Interaction::OrderDisplay => &["id=\"customer\"", "id=\"order\""],
        Interaction::SearchRequest => &["search_result", "name=\"SEARCH\"", "<h2>Today's offers</h2>"],
        Interaction::SearchResult | Interaction::NewProducts | Interaction::BestSellers => {
            &["id=\"found\"", "<table id=\"items\">", "<h2>Today's offers</h2>"]
        }
        Interaction::ProductDetail => &["ADD_FLAG=Y", "Our price", "/images/"],
        Interaction::AdminRequest => &["name=\"I_NEW_COST\"", "name=\"I_NEW_IMAGE\"", "/images/"],
        Interaction::AdminConfirm => &["Related: ", "/images/"],
    }
}

/// Says what is wrong with a picture or style sheet.
pub fn part_complaint(address: &str, bytes: &[u8]) -> Option<String> {
    let good = if address.ends_with(".png") {
        bytes.starts_with(b"\x89PNG\r\n\x1a\n") && bytes.ends_with(b"IEND\xaeB`\x82")
    } else {
        bytes.starts_with(b"body {")
    };
    // All thumbnails are of one size.
    if !good || address.contains("/thumb_") && bytes.len() != 5120 {
        return Some(format!("{address} is not what it should be ({} bytes)", bytes.len()));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(title: &str, body: &str) -> Vec<u8> {
        format!("<html><head><title>Bookstore: {title}</title></head>{body}<footer></footer>\n</body></html>\n")
            .into_bytes()
    }

    #[test]
    fn reads_numbers_and_parts() {
        let text = "<link href=\"/static/store.css\"><img src=\"/images/a.png\"><img src=\"/images/a.png\"> I_ID=12\" I_ID=x I_ID=7";
        let page = Page(text.as_bytes());
        assert_eq!(page.items(), [12, 7]);
        assert_eq!(page.parts(), ["/static/store.css", "/images/a.png"]);
        assert_eq!(page.number("nothing"), None);
    }

    #[test]
    fn a_right_page_has_no_complaint() {
        let text = page("Product Detail", "<p id=\"item\">Item 17</p>Our price /images/ ADD_FLAG=Y");
        let expected = Expected { item: Some(17), ..Expected::default() };
        assert_eq!(complaint(Interaction::ProductDetail, &Page(&text), &expected), None);
    }

    #[test]
    fn wrong_pages_are_found_out() {
        let good = page("Product Detail", "<p id=\"item\">Item 17</p>Our price /images/ ADD_FLAG=Y");
        let of = |number| Expected { item: Some(number), ..Expected::default() };
        let wrong =
            |text: &[u8], interaction, expected: &Expected| complaint(interaction, &Page(text), expected).unwrap();
        assert!(wrong(&good, Interaction::Home, &of(17)).contains("title"));
        assert!(wrong(&good, Interaction::ProductDetail, &of(1)).contains("item 1"));
        assert!(wrong(&good[..good.len() - 1], Interaction::ProductDetail, &of(17)).contains("end"));
        let bare = page("Product Detail", "<p id=\"item\">Item 17</p>");
        assert!(wrong(&bare, Interaction::ProductDetail, &of(17)).contains("ADD_FLAG"));
    }

    #[test]
    fn lists_are_counted() {
        let list =
            "id=\"found\" <h2>Today's offers</h2>ARTS<table id=\"items\">I_ID=1 I_ID=2</table><p id=\"found\">3 items";
        let text = page("New Products", &list.replacen("id=\"found\"", "", 1));
        let expected = Expected { subject: Some("ARTS"), ..Expected::default() };
        let found = complaint(Interaction::NewProducts, &Page(&text), &expected);
        assert_eq!(found.as_deref(), Some("2 items listed, 3 told"));
    }

    fn search(kind: &str, listed: &str, told: &str) -> Option<String> {
        let text = format!(
            "Searched for {kind} BA<<h2>Today's offers</h2><table id=\"items\">{listed}</table><p id=\"found\"{told}</p>"
        );
        let expected = Expected { search: Some(format!("{kind} BA")), ..Expected::default() };
        complaint(Interaction::SearchResult, &Page(&page("Search Result", &text)), &expected)
    }

    #[test]
    fn a_search_finds_what_is_there() {
        assert_eq!(search("title", "", ">0 items"), None);
        assert_eq!(search("author", "I_ID=4", ">1 items"), None);
        assert_eq!(search("author", "", ">0 items").as_deref(), Some("0 items listed, 0 told"));
        assert_eq!(search("author", "I_ID=4", ">").as_deref(), Some("no number of items"));
    }

    fn bought(quantity: u32, total: &str) -> Vec<u8> {
        let text = format!(
            "<p id=\"order\">Order 5</p><section id=\"customer\"><p>Ab Cd (OGBA)<br></section><table id=\"cart\"><tr><th>Title</th></tr>\n\
             <tr><td>2</td><td><a href=\"?C_ID=10&amp;I_ID=7\">t</a></td></tr><tr><td>{quantity}</td><td><a href=\"?I_ID=9\">t</a></td></tr>\n\
             </table><p id=\"subtotal\">Subtotal: $10.00</p><p>Discount: 3.00 %, tax: $0.83, shipping: $6.00</p>\
             <p id=\"total\">Total: ${total}</p>"
        );
        page("Buy Confirm", &text)
    }

    #[test]
    fn orders_are_of_what_was_in_the_cart() {
        let of = |text: &[u8], customer: &str| {
            let expected =
                Expected { customer: Some(customer.into()), lines: Some(vec![(7, 2), (9, 1)]), ..Expected::default() };
            complaint(Interaction::BuyConfirm, &Page(text), &expected)
        };
        assert_eq!(of(&bought(1, "16.83"), "OGBA"), None);
        assert_eq!(of(&bought(1, "16.84"), "OGBA").as_deref(), Some("the total is not the sum"));
        assert_eq!(of(&bought(3, "16.83"), "OGBA").as_deref(), Some("not what was in the cart"));
        assert_eq!(of(&bought(1, "16.83"), "BA").as_deref(), Some("not of customer BA"));
    }

    #[test]
    fn a_price_is_the_one_that_was_set() {
        let text = page("Admin Confirm", "<p id=\"item\">Item 3</p><p>Price: $7.05</p>Related: /images/");
        let of = |price: &str| {
            let expected = Expected { item: Some(3), price: Some(price.into()), ..Expected::default() };
            complaint(Interaction::AdminConfirm, &Page(&text), &expected)
        };
        assert_eq!(of("7.05"), None);
        assert!(of("7.0").is_some() && of("17.05").is_some());
    }

    #[test]
    fn pictures_are_checked() {
        let mut picture = b"\x89PNG\r\n\x1a\n".to_vec();
        picture.extend_from_slice(b"IEND\xaeB`\x82");
        assert_eq!(part_complaint("/static/home.png", &picture), None);
        assert!(part_complaint("/images/img1/thumb_1.png", &picture).is_some());
        assert!(part_complaint("/static/home.png", &picture[..10]).is_some());
        assert_eq!(part_complaint("/static/store.css", b"body {}"), None);
    }
}
