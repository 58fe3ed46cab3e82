package store;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import store.pages.AdminConfirm;
import store.pages.AdminRequest;
import store.pages.BestSellers;
import store.pages.BuyConfirm;
import store.pages.BuyRequest;
import store.pages.CustomerRegistration;
import store.pages.Home;
import store.pages.NewProducts;
import store.pages.OrderDisplay;
import store.pages.OrderInquiry;
import store.pages.ProductDetail;
import store.pages.SearchRequest;
import store.pages.SearchResult;
import store.pages.ShoppingCart;

/** The application server: Jetty or Tomcat with the fourteen interactions as servlets. */
public final class Main {
    static final String CONTEXT = "/store";
    /** How many connections wait to be accepted. */
    static final int BACKLOG = 1024;
    /** How long a connection is kept that says nothing: longer than the web server keeps it, which should be the one who closes. */
    static final int KEPT_MS = 120_000;

    private Main() {}

    public static void main(String[] words) throws Exception {
        Config config = new Config(words);
        Map<String, Interaction> interactions = interactions(new Database(config));
        String server = config.text("server", "jetty");
        switch (server) {
            case "jetty" -> JettyServer.start(config, interactions);
            case "tomcat" -> TomcatServer.start(config, interactions);
            default -> throw new IllegalArgumentException("--server is jetty or tomcat, not " + server);
        }
        System.out.println("ready");
        new CountDownLatch(1).await();
    }

    private static Map<String, Interaction> interactions(Database database) {
        Map<String, Interaction> all = new LinkedHashMap<>();
        all.put("home", new Home(database));
        all.put("shopping_cart", new ShoppingCart(database));
        all.put("customer_registration", new CustomerRegistration(database));
        all.put("buy_request", new BuyRequest(database));
        all.put("buy_confirm", new BuyConfirm(database));
        all.put("order_inquiry", new OrderInquiry(database));
        all.put("order_display", new OrderDisplay(database));
        all.put("search_request", new SearchRequest(database));
        all.put("search_result", new SearchResult(database));
        all.put("new_products", new NewProducts(database));
        all.put("best_sellers", new BestSellers(database));
        all.put("product_detail", new ProductDetail(database));
        all.put("admin_request", new AdminRequest(database));
        all.put("admin_confirm", new AdminConfirm(database));
        return all;
    }
}
