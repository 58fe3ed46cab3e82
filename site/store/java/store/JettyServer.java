package store;

import java.util.Map;
import org.eclipse.jetty.server.HttpConfiguration;
import org.eclipse.jetty.server.HttpConnectionFactory;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;
import org.eclipse.jetty.util.thread.QueuedThreadPool;

/** The interactions in Jetty. */
final class JettyServer {
    private JettyServer() {}

    static void start(Config config, Map<String, Interaction> interactions) throws Exception {
        QueuedThreadPool threads = new QueuedThreadPool(config.number("threads", 64), 16);
        threads.setName("store");
        Server server = new Server(threads);
        HttpConfiguration http = new HttpConfiguration();
        http.setSendServerVersion(false);
        http.setSendDateHeader(false);
        ServerConnector connector = new ServerConnector(server, 1, 1, new HttpConnectionFactory(http));
        connector.setHost(config.text("address", "127.0.0.1"));
        connector.setPort(config.number("port", 8080));
        connector.setAcceptQueueSize(Main.BACKLOG);
        connector.setIdleTimeout(Main.KEPT_MS);
        server.addConnector(connector);

        ServletContextHandler context = new ServletContextHandler(ServletContextHandler.NO_SESSIONS);
        context.setContextPath(Main.CONTEXT);
        interactions.forEach((name, servlet) -> context.addServlet(new ServletHolder(servlet), "/" + name));
        server.setHandler(context);
        server.setStopAtShutdown(true);
        server.start();
    }
}
