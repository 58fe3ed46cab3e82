//! The fourteen web interactions.

use serde::Serialize;

/// Declares the interactions once: name in Rust, name in addresses, title of the page, limit of the response time in
/// seconds (clause 5.5 of the specification: nine of ten have to be faster), and whether it goes over TLS.
macro_rules! interactions {
    ($(($name:ident, $path:literal, $title:literal, $limit:literal, $secure:literal)),* $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Interaction { $($name),* }

        impl Interaction {
            pub const ALL: [Interaction; 14] = [$(Interaction::$name),*];

            pub fn path(self) -> &'static str {
                match self { $(Interaction::$name => $path),* }
            }

            /// What stands in the page's title, after the store's name.
            pub fn title(self) -> &'static str {
                match self { $(Interaction::$name => $title),* }
            }

            pub fn limit_seconds(self) -> f64 {
                match self { $(Interaction::$name => $limit),* }
            }

            /// Passwords and cards do not go over plain HTTP.
            pub fn secure(self) -> bool {
                match self { $(Interaction::$name => $secure),* }
            }
        }
    };
}

// In the order of the rows and columns of the specification's tables.
interactions![
    (AdminConfirm, "admin_confirm", "Admin Confirm", 20.0, false),
    (AdminRequest, "admin_request", "Admin Request", 3.0, false),
    (BestSellers, "best_sellers", "Best Sellers", 5.0, false),
    (BuyConfirm, "buy_confirm", "Buy Confirm", 5.0, true),
    (BuyRequest, "buy_request", "Buy Request", 3.0, true),
    (CustomerRegistration, "customer_registration", "Customer Registration", 3.0, true),
    (Home, "home", "Home", 3.0, false),
    (NewProducts, "new_products", "New Products", 5.0, false),
    (OrderDisplay, "order_display", "Order Display", 3.0, true),
    (OrderInquiry, "order_inquiry", "Order Inquiry", 3.0, true),
    (ProductDetail, "product_detail", "Product Detail", 3.0, false),
    (SearchRequest, "search_request", "Search Request", 3.0, false),
    (SearchResult, "search_result", "Search Result", 10.0, false),
    (ShoppingCart, "shopping_cart", "Shopping Cart", 3.0, false),
];

impl Interaction {
    /// What somebody has done who is here: without a cart nobody buys, without an item's page nobody changes it.
    pub fn way_here(self) -> &'static [Interaction] {
        use Interaction::{
            AdminConfirm, AdminRequest, BuyConfirm, BuyRequest, CustomerRegistration, ProductDetail, ShoppingCart,
        };
        match self {
            AdminRequest => &[ProductDetail, AdminRequest],
            AdminConfirm => &[ProductDetail, AdminRequest, AdminConfirm],
            CustomerRegistration => &[ShoppingCart, CustomerRegistration],
            BuyRequest => &[ShoppingCart, BuyRequest],
            BuyConfirm => &[ShoppingCart, BuyRequest, BuyConfirm],
            other => std::slice::from_ref(&Interaction::ALL[other as usize]),
        }
    }

    pub fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_ends_where_it_should() {
        for interaction in Interaction::ALL {
            assert_eq!(interaction.way_here().last(), Some(&interaction));
            assert_eq!(Interaction::ALL[interaction.index()], interaction);
        }
    }
}
