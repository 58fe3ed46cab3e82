package store;

import java.util.Map;
import org.apache.catalina.Context;
import org.apache.catalina.LifecycleException;
import org.apache.catalina.connector.Connector;
import org.apache.catalina.startup.Tomcat;

/** The interactions in Tomcat. */
final class TomcatServer {
    private TomcatServer() {}

    static void start(Config config, Map<String, Interaction> interactions) throws LifecycleException {
        Tomcat tomcat = new Tomcat();
        tomcat.setBaseDir(config.text("directory", System.getProperty("java.io.tmpdir")));
        Connector connector = new Connector("org.apache.coyote.http11.Http11NioProtocol");
        connector.setPort(config.number("port", 8080));
        connector.setURIEncoding("UTF-8");
        Map.of("address", config.text("address", "127.0.0.1"), "maxThreads", "" + config.number("threads", 64),
            "acceptCount", "" + Main.BACKLOG, "keepAliveTimeout", "" + Main.KEPT_MS, "maxKeepAliveRequests", "-1")
            .forEach(connector::setProperty);
        tomcat.setConnector(connector);

        Context context = tomcat.addContext(Main.CONTEXT, null);
        interactions.forEach((name, servlet) -> {
            Tomcat.addServlet(context, name, servlet);
            context.addServletMappingDecoded("/" + name, name);
        });
        tomcat.start();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try {
                tomcat.stop();
            } catch (LifecycleException error) {
                System.err.println("Tomcat does not stop: " + error.getMessage());
            }
        }));
    }
}
