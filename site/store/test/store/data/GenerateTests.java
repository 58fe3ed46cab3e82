package store.data;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.SplittableRandom;
import store.Tests;
import store.Words;

/** That data have the specification's sizes, fit together, and are the same each time. */
public final class GenerateTests {
    private GenerateTests() {}

    public static void run() throws IOException {
        Path work = Files.createTempDirectory("store-test");
        try {
            Path first = Files.createDirectory(work.resolve("a"));
            Path again = Files.createDirectory(work.resolve("b"));
            new Generate(5, 1000, 1, first).all();
            new Generate(5, 1000, 1, again).all();
            sizes(first);
            fits(first);
            for (String table : List.of("item", "customer", "orders", "order_line")) {
                Tests.equal(table + " the same twice", -1L,
                    Files.mismatch(first.resolve(table + ".tsv"), again.resolve(table + ".tsv")));
            }
            pictures();
        } finally {
            try (var files = Files.walk(work)) {
                for (Path path : files.sorted(Comparator.reverseOrder()).toList()) {
                    Files.delete(path);
                }
            }
        }
    }

    private static List<String[]> rows(Path directory, String table) throws IOException {
        try (var lines = Files.lines(directory.resolve(table + ".tsv"))) {
            return lines.map(line -> line.split("\t", -1)).toList();
        }
    }

    private static void sizes(Path directory) throws IOException {
        Tests.equal("items", 1000, rows(directory, "item").size());
        Tests.equal("authors", 250, rows(directory, "author").size());
        Tests.equal("customers", 2880, rows(directory, "customer").size());
        Tests.equal("addresses", 5760, rows(directory, "address").size());
        Tests.equal("orders", 2592, rows(directory, "orders").size());
        Tests.equal("cards", 2592, rows(directory, "cc_xacts").size());
        Tests.equal("countries", 92, rows(directory, "country").size());
        int lines = rows(directory, "order_line").size();
        Tests.equal("three lines an order, about", true, Math.abs(lines - 3 * 2592) < 250);
    }

    private static void fits(Path directory) throws IOException {
        Set<String> subjects = new HashSet<>();
        for (String[] item : rows(directory, "item")) {
            Tests.equal("columns of an item", 22, item.length);
            subjects.add(item[5]);
            Tests.equal("author", true, Integer.parseInt(item[2]) >= 1 && Integer.parseInt(item[2]) <= 250);
            Tests.equal("related items differ", 5, new HashSet<>(Arrays.asList(item).subList(7, 12)).size());
            Tests.equal("title is short enough", true, item[1].length() <= 60);
        }
        Tests.equal("subjects used", new HashSet<>(Arrays.asList(Words.SUBJECTS)), subjects);
        Set<String> names = new HashSet<>();
        for (String[] customer : rows(directory, "customer")) {
            Tests.equal("columns of a customer", 17, customer.length);
            names.add(customer[1]);
            Tests.equal("password", customer[1].toLowerCase(java.util.Locale.ROOT), customer[2]);
        }
        Tests.equal("names differ", 2880, names.size());
    }

    private static void pictures() throws IOException {
        int[] counts = new int[251];
        for (int item = 1; item <= 100; item++) {
            counts[Images.imageBytes(item) / 1024]++;
        }
        Tests.equal("sizes of pictures", List.of(45, 35, 15, 4, 1),
            List.of(counts[5], counts[10], counts[50], counts[100], counts[250]));
        byte[] picture = Images.picture(new SplittableRandom(1), 240, 360, 5 * 1024);
        Tests.equal("a picture's size", 5 * 1024, picture.length);
    }
}
