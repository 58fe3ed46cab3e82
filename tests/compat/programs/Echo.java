import com.sun.net.httpserver.HttpServer;
import java.io.DataInputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** Echo servers and clients that check every byte: java Echo blocking|nio|http|...-client PORT. */
class Echo {
    static final InetAddress HOST = InetAddress.getLoopbackAddress();

    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(arguments[1]);
        switch (arguments[0]) {
            case "blocking" -> blocking(port);
            case "nio" -> nio(port);
            case "http" -> http(port);
            case "blocking-client", "nio-client" -> client(port);
            case "http-client" -> httpClient(port);
            default -> throw new IllegalArgumentException(arguments[0]);
        }
    }

    static void blocking(int port) throws Exception {
        var listener = new ServerSocket(port, 100, HOST);
        while (true) {
            Socket socket = listener.accept();
            new Thread(() -> {
                try (socket) {
                    socket.getInputStream().transferTo(socket.getOutputStream());
                } catch (Exception error) {
                    error.printStackTrace();
                }
            }).start();
        }
    }

    static void nio(int port) throws Exception {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(new InetSocketAddress(HOST, port), 100);
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        while (true) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                if (key.isAcceptable()) {
                    SocketChannel channel = listener.accept();
                    if (channel == null) {
                        continue;
                    }
                    channel.configureBlocking(false);
                    channel.register(selector, SelectionKey.OP_READ, ByteBuffer.allocateDirect(100_000));
                    continue;
                }
                SocketChannel channel = (SocketChannel) key.channel();
                ByteBuffer buffer = (ByteBuffer) key.attachment();
                if (key.isReadable() && channel.read(buffer) < 0) {
                    channel.close();
                    continue;
                }
                buffer.flip();
                channel.write(buffer);
                // What is left waits for room, and nothing is read until it has gone.
                key.interestOps(buffer.hasRemaining() ? SelectionKey.OP_WRITE : SelectionKey.OP_READ);
                if (buffer.hasRemaining()) {
                    buffer.compact();
                } else {
                    buffer.clear();
                }
            }
            selector.selectedKeys().clear();
        }
    }

    static byte[] some(int seed, int size) {
        byte[] data = new byte[size];
        new java.util.Random(seed).nextBytes(data);
        return data;
    }

    static void client(int port) throws Exception {
        var pool = Executors.newCachedThreadPool();
        List<Future<Integer>> rights = new ArrayList<>();
        for (int n = 0; n < 20; n++) {
            int seed = n;
            rights.add(pool.submit(() -> {
                int right = 0;
                try (Socket socket = new Socket(HOST, port)) {
                    socket.setTcpNoDelay(true);
                    socket.setSoTimeout(60_000);
                    OutputStream out = socket.getOutputStream();
                    var in = new DataInputStream(socket.getInputStream());
                    for (int size : new int[] {1, 100, 10_000, 3_000_000, 77}) {
                        byte[] data = some(seed, size);
                        var sending = pool.submit(() -> {
                            out.write(data);
                            return null;
                        });
                        right += java.util.Arrays.equals(data, in.readNBytes(size)) ? 1 : 0;
                        sending.get();
                    }
                    socket.shutdownOutput();
                    right += in.read() == -1 ? 1 : 0;
                }
                return right;
            }));
        }
        int right = 0;
        for (Future<Integer> future : rights) {
            right += future.get();
        }
        System.out.println(right + " of " + 20 * 6 + " right");
        pool.shutdown();
    }

    static void http(int port) throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress(HOST, port), 100);
        server.setExecutor(Executors.newCachedThreadPool());
        server.createContext("/", exchange -> {
            byte[] body = exchange.getRequestBody().readAllBytes();
            exchange.sendResponseHeaders(200, body.length == 0 ? -1 : body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.start();
    }

    static void httpClient(int port) throws Exception {
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        List<CompletableFuture<Boolean>> answers = new ArrayList<>();
        for (int n = 0; n < 60; n++) {
            byte[] data = some(n, n % 10 == 0 ? 2_000_000 : 500 * n);
            var request = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + port + "/"))
                .POST(HttpRequest.BodyPublishers.ofByteArray(data)).build();
            answers.add(client.sendAsync(request, HttpResponse.BodyHandlers.ofByteArray())
                .thenApply(response -> java.util.Arrays.equals(data, response.body())));
        }
        int right = 0;
        for (CompletableFuture<Boolean> answer : answers) {
            right += answer.get() ? 1 : 0;
        }
        System.out.println(right + " of 60 right");
    }
}
