//! One emulated browser: what it knows, what it asks for next, and what it makes of the answer.

use crate::customer;
use crate::http::{Ask, Lines, Site};
use crate::interaction::Interaction;
use crate::journal::{Attempt, Journal};
use crate::mix::Mix;
use crate::page::{Expected, Page, complaint, part_complaint};
use crate::stats::Stats;
use crate::words::{CARDS, COUNTRIES, Form, SHIPPING, SUBJECTS, dig_syl, digits, letters, one_of};
use anyhow::{Result, anyhow, bail};
use bytes::Bytes;
use rand::Rng;
use rand::rngs::SmallRng;
use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What all browsers of a run share.
pub struct Plan {
    pub site: Site,
    pub mix: Mix,
    pub items: u32,
    pub customers: u32,
    pub think_factor: f64,
    /// How many pictures are fetched at the same time.
    pub at_once: usize,
    pub pictures: bool,
    pub secure: bool,
    pub journal: Journal,
    /// When what has no answer yet is given up, in the open loop.
    pub give_up: Option<Instant>,
}

/// Of what was given up.
pub const UNANSWERED: &str = "no answer by the end";

/// The mean of think times and of sessions, and what they are cut at.
const THINK: (Duration, Duration) = (Duration::from_secs(7), Duration::from_secs(70));
const SESSION: (Duration, Duration) = (Duration::from_secs(15 * 60), Duration::from_secs(60 * 60));
/// How many of a hundred customers ship to another address.
const OTHER_ADDRESS_PERCENT: u32 = 5;

/// A negative exponential distribution that is cut.
pub fn exponential((mean, most): (Duration, Duration), random: &mut impl Rng) -> Duration {
    let uniform: f64 = random.random();
    let drawn = -(1.0 - uniform).ln() * mean.as_secs_f64();
    Duration::from_secs_f64(drawn.min(most.as_secs_f64()))
}

pub fn think_time(factor: f64, random: &mut impl Rng) -> Duration {
    exponential(THINK, random).mul_f64(factor)
}

/// A request that is ready, and what its page has to show.
struct Wish {
    address: String,
    form: Option<String>,
    expected: Expected,
    order: Option<Attempt>,
}

pub struct Browser {
    plan: Arc<Plan>,
    random: SmallRng,
    lines: Lines,
    /// The page at hand; none at the start, and after an error.
    at: Option<Interaction>,
    session_ends: Instant,
    customer: Option<u32>,
    cart: Option<u32>,
    /// Items that the page at hand links to, and the one that it is about.
    links: Vec<u32>,
    item: Option<u32>,
    /// Fields for quantities of the cart at hand.
    quantities: Vec<u32>,
    /// Item and quantity of each line of what is about to be bought.
    buying: Vec<(u32, u32)>,
    /// Pictures that this session has fetched already, as a browser keeps them.
    cache: HashSet<String>,
}

impl Browser {
    pub fn new(plan: Arc<Plan>, random: SmallRng) -> Self {
        let mut browser = Browser {
            plan,
            random,
            lines: Lines::default(),
            at: None,
            session_ends: Instant::now(),
            customer: None,
            cart: None,
            links: Vec::new(),
            item: None,
            quantities: Vec::new(),
            buying: Vec::new(),
            cache: HashSet::new(),
        };
        browser.begin_session();
        browser
    }

    pub fn random(&mut self) -> &mut SmallRng {
        &mut self.random
    }

    pub fn has_given_up(&self) -> bool {
        self.plan.give_up.is_some_and(|at| Instant::now() >= at)
    }

    /// Somebody else sits down: nothing is kept, and nothing known but who it is, if it is a customer.
    fn begin_session(&mut self) {
        self.session_ends =
            Instant::now() + exponential(SESSION, &mut self.random).mul_f64(self.plan.think_factor.max(0.01));
        self.lines.close();
        self.cache.clear();
        self.customer = customer::known(self.plan.customers, &mut self.random);
        self.cart = None;
        self.links.clear();
        self.item = None;
        self.quantities.clear();
        self.buying.clear();
    }

    /// Goes where somebody is in the middle of a run, in the ramp-up: if all began at the front page, the first seconds
    /// of the measured interval would have too many of what is near it.
    pub async fn settle(&mut self, stats: &Mutex<Stats>) {
        for interaction in self.plan.mix.somewhere(&mut self.random).way_here() {
            self.interact(*interaction, Instant::now(), stats).await;
        }
    }

    /// The interaction that comes next.
    pub fn choose(&mut self) -> Interaction {
        let next = match self.at {
            None => Interaction::Home,
            Some(at) => self.plan.mix.next(at, &mut self.random),
        };
        if next == Interaction::Home && Instant::now() >= self.session_ends {
            self.begin_session();
        }
        next
    }

    /// Does an interaction, with all its pictures, and counts it. `due` is when it should have begun.
    pub async fn interact(&mut self, interaction: Interaction, due: Instant, stats: &Mutex<Stats>) {
        let wish = self.wish(interaction);
        let order = wish.order.clone();
        let give_up = self.plan.give_up;
        let fetch = self.fetch(interaction, &wish, stats);
        let result = match give_up {
            None => fetch.await,
            Some(at) => tokio::time::timeout_at(at.into(), fetch).await.unwrap_or_else(|_| Err(anyhow!(UNANSWERED))),
        };
        let now = Instant::now();
        if let Some(mut attempt) = order {
            attempt.order = result.as_ref().ok().and_then(|page| Page(page).number("id=\"order\">Order "));
            self.plan.journal.note(attempt);
        }
        let mut stats = stats.lock().expect("nobody panics with it");
        stats.connected(std::mem::take(&mut self.lines.opened), std::mem::take(&mut self.lines.asked_again));
        match result {
            Ok(page) => {
                self.learn(interaction, &Page(&page));
                self.at = Some(interaction);
                stats.good(interaction, due, now);
            }
            Err(error) => {
                stats.bad(interaction, &format!("{error:#}"), due, now);
                // What the page at hand offered is lost; somebody would start over at the front page.
                self.at = None;
                self.begin_session();
            }
        }
    }

    async fn fetch(&mut self, interaction: Interaction, wish: &Wish, stats: &Mutex<Stats>) -> Result<Bytes> {
        let secure = self.plan.secure && interaction.secure();
        let plan = Arc::clone(&self.plan);
        let ask = Ask { secure, address: &wish.address, form: wish.form.as_deref() };
        let page = self.lines.ask(&plan.site, &ask).await?;
        if let Some(wrong) = complaint(interaction, &Page(&page), &wish.expected) {
            bail!("{wrong}");
        }
        let parts = if plan.pictures { self.missing_parts(&page) } else { Vec::new() };
        let bytes = self.fetch_parts(&parts, secure).await?;
        stats.lock().expect("nobody panics with it").received(page.len() + bytes, parts.len());
        Ok(page)
    }

    fn missing_parts(&mut self, page: &Bytes) -> Vec<String> {
        let mut missing = Vec::new();
        for address in Page(page).parts() {
            if self.cache.insert(address.to_owned()) {
                missing.push(address.to_owned());
            }
        }
        missing
    }

    /// Fetches pictures over some connections at the same time; a secure page's come over its secure connection.
    async fn fetch_parts(&mut self, parts: &[String], secure: bool) -> Result<usize> {
        let plan = Arc::clone(&self.plan);
        let at_once = if secure { 1 } else { plan.at_once.min(parts.len()).max(1) };
        let size = parts.len().div_ceil(at_once).max(1);
        let mut chunks = parts.chunks(size);
        let own = chunks.next().unwrap_or_default();
        let others: Vec<(Lines, &[String])> = chunks.map(|chunk| (self.lines.split(), chunk)).collect();
        let mut tasks = tokio::task::JoinSet::new();
        for (mut lines, chunk) in others {
            let (plan, chunk) = (Arc::clone(&plan), chunk.to_vec());
            tasks.spawn(async move {
                let result = fetch_each(&mut lines, &plan.site, &chunk, false).await;
                (lines, result)
            });
        }
        let mut bytes = fetch_each(&mut self.lines, &plan.site, own, secure).await;
        while let Some(done) = tasks.join_next().await {
            let (lines, result) = done?;
            self.lines.join(lines);
            bytes = bytes.and_then(|sum| result.map(|more| sum + more));
        }
        bytes
    }

    fn learn(&mut self, interaction: Interaction, page: &Page) {
        self.links = page.items();
        self.item = page.number("id=\"item\">Item ");
        self.quantities = page.numbers("name=\"QTY_");
        match interaction {
            Interaction::ShoppingCart => self.cart = page.number("id=\"number\">Cart "),
            Interaction::BuyRequest => {
                self.customer = page.number("name=\"C_ID\" value=\"");
                self.buying = page.lines();
            }
            _ => {}
        }
    }

    fn some_item(&mut self) -> u32 {
        if self.links.is_empty() {
            return self.random.random_range(1..=self.plan.items);
        }
        self.links[self.random.random_range(0..self.links.len())]
    }

    fn session(&self) -> Form {
        Form::default().with_number("C_ID", self.customer).with_number("SHOPPING_ID", self.cart)
    }

    fn wish(&mut self, interaction: Interaction) -> Wish {
        let mut expected = Expected { customer_is_known: self.customer.is_some(), ..Expected::default() };
        let mut order = None;
        let mut post = false;
        let form = match interaction {
            Interaction::Home
            | Interaction::CustomerRegistration
            | Interaction::OrderInquiry
            | Interaction::SearchRequest => self.session(),
            Interaction::NewProducts | Interaction::BestSellers => {
                let subject = one_of(&SUBJECTS, &mut self.random);
                expected.subject = Some(subject);
                self.session().with("SUBJECT", subject)
            }
            Interaction::SearchResult => self.search(&mut expected),
            Interaction::ProductDetail => {
                let item = self.some_item();
                expected.item = Some(item);
                self.session().with_number("I_ID", Some(item))
            }
            Interaction::AdminRequest => {
                let item = self.item.unwrap_or(1);
                expected.item = Some(item);
                self.session().with_number("I_ID", Some(item))
            }
            Interaction::AdminConfirm => {
                post = true;
                self.change_item(&mut expected)
            }
            Interaction::ShoppingCart => {
                expected.cart = self.cart;
                self.change_cart()
            }
            Interaction::BuyRequest => {
                post = true;
                expected.cart = self.cart;
                expected.customer = self.customer.map(|customer| dig_syl(customer, 0));
                self.register()
            }
            Interaction::BuyConfirm => {
                post = true;
                expected.customer = self.customer.map(|customer| dig_syl(customer, 0));
                expected.lines = Some(std::mem::take(&mut self.buying));
                let (form, attempt) = self.buy();
                order = Some(attempt);
                form
            }
            Interaction::OrderDisplay => {
                post = true;
                let customer = self.customer.unwrap_or_else(|| customer::some(self.plan.customers, &mut self.random));
                let name = dig_syl(customer, 0);
                let form = Form::default().with("UNAME", &name).with("PASSWD", name.to_lowercase());
                expected.customer = Some(name);
                form
            }
        };
        let form = form.finish();
        let path = format!("/store/{}", interaction.path());
        if post {
            Wish { address: path, form: Some(form), expected, order }
        } else {
            let address = if form.is_empty() { path } else { format!("{path}?{form}") };
            Wish { address, form: None, expected, order }
        }
    }

    fn search(&mut self, expected: &mut Expected) -> Form {
        let kind = one_of(&["author", "title", "subject"], &mut self.random);
        let words = if kind == "subject" {
            let subject = one_of(&SUBJECTS, &mut self.random);
            expected.subject = Some(subject);
            subject.to_owned()
        } else {
            dig_syl(self.random.random_range(1..=self.plan.items / 5), 7)
        };
        expected.search = Some(format!("{kind} {words}"));
        self.session().with("TYPE", kind).with("SEARCH", words)
    }

    /// From an item's page it goes into the cart; from the cart itself quantities change; from elsewhere it is looked
    /// at.
    fn change_cart(&mut self) -> Form {
        let mut form = self.session();
        if self.at == Some(Interaction::ProductDetail) {
            form = form.with("ADD_FLAG", "Y").with_number("I_ID", self.item);
        } else if self.at == Some(Interaction::ShoppingCart) {
            for item in std::mem::take(&mut self.quantities) {
                let quantity = self.random.random_range(0..=10);
                form = form.with(&format!("QTY_{item}"), u32::to_string(&quantity));
            }
        }
        form
    }

    fn register(&mut self) -> Form {
        let form = Form::default().with_number("SHOPPING_ID", self.cart);
        if let Some(customer) = self.customer {
            let name = dig_syl(customer, 0);
            return form.with("RETURNING_FLAG", "Y").with("UNAME", &name).with("PASSWD", name.to_lowercase());
        }
        let random = &mut self.random;
        let form = form.with("RETURNING_FLAG", "N").with("FNAME", letters(8, 15, random));
        let form = form.with("LNAME", letters(8, 15, random)).with("PHONE", digits(9, random));
        let form = form.with("EMAIL", format!("{}@{}.com", letters(3, 9, random), letters(2, 9, random)));
        let form = form.with("BIRTHDATE", "1970-01-01").with("DATA", letters(100, 400, random));
        address(form, random)
    }

    fn buy(&mut self) -> (Form, Attempt) {
        let random = &mut self.random;
        let card = digits(16, random);
        let mut form = Form::default()
            .with_number("C_ID", self.customer)
            .with_number("SHOPPING_ID", self.cart)
            .with("CC_TYPE", one_of(&CARDS, random))
            .with("CC_NUMBER", &card)
            .with("CC_NAME", letters(14, 30, random))
            .with("CC_EXPIRY", "2028-12-31")
            .with("SHIPPING", one_of(&SHIPPING, random));
        if random.random_range(0..100) < OTHER_ADDRESS_PERCENT {
            form = address(form, random);
        }
        (form, Attempt { card, cart: self.cart, order: None })
    }

    fn change_item(&mut self, expected: &mut Expected) -> Form {
        let item = self.item.unwrap_or(1);
        expected.item = Some(item);
        let cents = self.random.random_range(100..=99_999);
        let price = format!("{}.{:02}", cents / 100, cents % 100);
        expected.price = Some(price.clone());
        self.session()
            .with_number("I_ID", Some(item))
            .with("I_NEW_COST", price)
            .with("I_NEW_IMAGE", format!("img{}/image_{item}.png", item % 100))
            .with("I_NEW_THUMBNAIL", format!("img{}/thumb_{item}.png", item % 100))
    }
}

fn address(form: Form, random: &mut SmallRng) -> Form {
    form.with("STREET_1", letters(15, 40, random))
        .with("STREET_2", letters(15, 40, random))
        .with("CITY", letters(4, 30, random))
        .with("STATE", letters(2, 20, random))
        .with("ZIP", digits(8, random))
        .with("COUNTRY", one_of(&COUNTRIES, random))
}

async fn fetch_each(lines: &mut Lines, site: &Site, addresses: &[String], secure: bool) -> Result<usize> {
    let mut sum = 0;
    for address in addresses {
        let bytes = lines.ask(site, &Ask { secure, address, form: None }).await?;
        if let Some(wrong) = part_complaint(address, &bytes) {
            bail!("{wrong}");
        }
        sum += bytes.len();
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn think_times_have_the_mean_and_are_cut() {
        let mut random = SmallRng::seed_from_u64(3);
        let times: Vec<f64> = (0..200_000).map(|_| think_time(1.0, &mut random).as_secs_f64()).collect();
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        assert!((mean - 7.0).abs() < 0.1, "{mean}");
        assert!(times.iter().all(|time| *time <= 70.0));
        let above = times.iter().filter(|time| **time > 7.0).count() as f64 / times.len() as f64;
        assert!((above - (-1.0_f64).exp()).abs() < 0.01, "exponential: {above}");
    }

    #[test]
    fn the_factor_shortens() {
        let mut random = SmallRng::seed_from_u64(3);
        let sum: f64 = (0..10_000).map(|_| think_time(0.1, &mut random).as_secs_f64()).sum();
        assert!((sum / 10_000.0 - 0.7).abs() < 0.05);
    }
}
