package store;

import java.util.LinkedHashMap;
import java.util.Map;
import org.eclipse.jetty.server.HttpConfiguration;
import org.eclipse.jetty.server.HttpConnectionFactory;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;
import org.eclipse.jetty.util.thread.QueuedThreadPool;
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

/** The application server: Jetty with the fourteen interactions as servlets. */
public final class Main {
    private Main() {}

    public static void main(String[] words) throws Exception {
        Config config = new Config(words);
        Database database = new Database(config);

        QueuedThreadPool threads = new QueuedThreadPool(config.number("threads", 64), 16);
        threads.setName("store");
        Server server = new Server(threads);
        HttpConfiguration http = new HttpConfiguration();
        http.setSendServerVersion(false);
        http.setSendDateHeader(false);
        ServerConnector connector = new ServerConnector(server, 1, 1, new HttpConnectionFactory(http));
        connector.setHost(config.text("address", "127.0.0.1"));
        connector.setPort(config.number("port", 8080));
        connector.setAcceptQueueSize(1024);
        // Longer than the web server keeps a connection to us: it should be the one who closes.
        connector.setIdleTimeout(120_000);
        server.addConnector(connector);

        ServletContextHandler context = new ServletContextHandler(ServletContextHandler.NO_SESSIONS);
        context.setContextPath("/store");
        interactions(database).forEach((name, servlet) -> context.addServlet(new ServletHolder(servlet), "/" + name));
        server.setHandler(context);
        server.setStopAtShutdown(true);
        server.start();
        System.out.println("ready");
        server.join();
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
