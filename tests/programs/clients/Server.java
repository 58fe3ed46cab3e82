// A page of 1 KiB for whoever asks: Server.java PORT

import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.util.concurrent.Executors;

public class Server {
    public static void main(String[] words) throws Exception {
        // Head and body are two writes, and the second would wait 40 ms for the client's acknowledgement, over TCP alone.
        System.setProperty("sun.net.httpserver.nodelay", "true");
        byte[] page = ("x".repeat(1023) + "\n").getBytes();
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(words[0])), 128);
        server.createContext("/", exchange -> {
            exchange.sendResponseHeaders(200, page.length);
            exchange.getResponseBody().write(page);
            exchange.close();
        });
        server.setExecutor(Executors.newFixedThreadPool(8));
        server.start();
    }
}
