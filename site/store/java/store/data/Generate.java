package store.data;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashSet;
import java.util.Locale;
import java.util.Set;
import store.Config;
import store.Words;

/**
 * Makes the store's data: a file for each table, and the pictures.
 *
 * <pre>
 *     --items N      1,000 to 100,000 (rounded to nothing; the specification has 1,000, 10,000, 100,000, 1,000,000, 10,000,000)
 *     --browsers N   2,880 customers for each
 *     --seed N       the same numbers make the same data, byte for byte
 *     --tables DIR   where the tables go          --images DIR   where the pictures go (nowhere, if it is not given)
 * </pre>
 */
public final class Generate {
    static final int CUSTOMERS_PER_BROWSER = 2880;
    private static final int COUNTRY = 1;
    private static final int AUTHOR = 2;
    private static final int ITEM = 3;
    private static final int CUSTOMER = 4;
    private static final int ADDRESS = 5;
    private static final int ORDER = 6;

    private final long seed;
    private final int items;
    private final int customers;
    private final Path directory;

    Generate(long seed, int items, int browsers, Path directory) {
        this.seed = seed;
        this.items = items;
        this.customers = Math.multiplyExact(browsers, CUSTOMERS_PER_BROWSER);
        this.directory = directory;
    }

    public static void main(String[] words) throws IOException {
        Config config = new Config(words);
        int items = config.number("items", 1000);
        if (items < 1000) {
            throw new IllegalArgumentException("at least 1,000 items");
        }
        Path tables = Path.of(config.text("tables", "tables"));
        Files.createDirectories(tables);
        long seed = config.number("seed", 1);
        new Generate(seed, items, config.number("browsers", 1), tables).all();
        String images = config.text("images", "");
        if (!images.isEmpty()) {
            Images.make(Path.of(images), seed, items);
        }
    }

    void all() throws IOException {
        countries();
        authors();
        items();
        customers();
        addresses();
        orders();
    }

    private void countries() throws IOException {
        try (Table table = new Table(directory, "country")) {
            for (int id = 1; id <= Countries.NAMES.length; id++) {
                Text text = new Text(seed, COUNTRY, id);
                // The exchange rates of 1999 are of no use to anybody.
                table.row(id, Countries.NAMES[id - 1], id == 1 ? "1.00" : text.money(10, 99_999), text.letters(4, 18));
            }
        }
    }

    /** A quarter as many as items. Their names begin with a DigSyl, which is what searches look for. */
    private void authors() throws IOException {
        try (Table table = new Table(directory, "author")) {
            for (int id = 1; id <= items / 4; id++) {
                Text text = new Text(seed, AUTHOR, id);
                table.row(id, text.letters(3, 20), Words.digSyl(id % searchWords() + 1, 7) + text.letters(1, 6), text.letters(1, 20),
                    text.date(1800, 1990), text.sentence(125, 500));
            }
        }
    }

    /** How many different words begin names and titles: so that a search by title finds some five items. */
    private int searchWords() {
        return items / 5;
    }

    private void items() throws IOException {
        try (Table table = new Table(directory, "item")) {
            for (int id = 1; id <= items; id++) {
                Text text = new Text(seed, ITEM, id);
                int author = id <= items / 4 ? id : text.between(1, items / 4);
                String title = Words.digSyl(text.between(1, searchWords()), 7) + " " + text.sentence(4, 45);
                var published = text.date(1930, 2000);
                Set<Integer> related = new LinkedHashSet<>();
                while (related.size() < 5) {
                    int other = text.between(1, items);
                    if (other != id) {
                        related.add(other);
                    }
                }
                Integer[] five = related.toArray(new Integer[0]);
                int suggested = text.between(100, 99_999);
                int cost = Math.max(1, suggested - (int) ((long) suggested * text.between(0, 50) / 100));
                table.row(id, title, author, published, text.letters(14, 60), text.oneOf(Words.SUBJECTS), text.sentence(100, 500),
                    five[0], five[1], five[2], five[3], five[4], Images.thumbnail(id), Images.image(id),
                    Text.hundredths(suggested), Text.hundredths(cost), published.plusDays(text.between(1, 30)),
                    text.between(10, 30), text.letters(13, 13), text.between(20, 9999), text.oneOf(Words.BACKINGS),
                    text.money(1, 9999) + "x" + text.money(1, 9999) + "x" + text.money(1, 9999));
            }
        }
    }

    private void customers() throws IOException {
        try (Table table = new Table(directory, "customer")) {
            for (int id = 1; id <= customers; id++) {
                Text text = new Text(seed, CUSTOMER, id);
                String name = Words.digSyl(id, 0);
                var since = Text.TODAY.minusDays(text.between(1, 730));
                var visited = since.plusDays(text.between(0, 60));
                table.row(id, name, name.toLowerCase(Locale.ROOT), text.letters(8, 15), text.letters(8, 15),
                    text.between(1, 2 * customers), text.digits(9, 16), name + "@" + text.letters(2, 9) + ".com", since,
                    visited.isAfter(Text.TODAY) ? Text.TODAY : visited, Text.TODAY + " 00:00:00", Text.TODAY + " 02:00:00",
                    text.between(0, 50) + ".00", "0.00", text.money(0, 99_999), text.date(1880, 2000), text.sentence(100, 500));
            }
        }
    }

    private void addresses() throws IOException {
        try (Table table = new Table(directory, "address")) {
            for (int id = 1; id <= 2 * customers; id++) {
                Text text = new Text(seed, ADDRESS, id);
                table.row(id, text.letters(15, 40), text.letters(15, 40), text.letters(4, 30), text.letters(2, 20),
                    text.digits(5, 10), text.between(1, Countries.NAMES.length));
            }
        }
    }

    /** Nine tenths as many as customers, with one to five lines each. */
    private void orders() throws IOException {
        int orders = (int) ((long) customers * 9 / 10);
        try (Table order = new Table(directory, "orders");
                Table line = new Table(directory, "order_line");
                Table card = new Table(directory, "cc_xacts")) {
            for (int id = 1; id <= orders; id++) {
                Text text = new Text(seed, ORDER, id);
                var day = Text.TODAY.minusDays(text.between(1, 60));
                String time = " " + String.format(Locale.ROOT, "%02d:%02d:%02d", text.between(0, 23), text.between(0, 59),
                    text.between(0, 59));
                int lines = text.between(1, 5);
                int sum = text.between(1000, 999_999);
                int tax = (int) Math.round(sum * 0.0825);
                String total = Text.hundredths(sum + tax + 300 + 100L * lines);
                String shipped = day.plusDays(text.between(0, 7)) + time;
                order.row(id, text.between(1, customers), day + time, Text.hundredths(sum), Text.hundredths(tax), total,
                    text.oneOf(Words.SHIPPING), shipped, text.between(1, 2 * customers), text.between(1, 2 * customers),
                    text.oneOf(Words.STATES));
                for (int number = 1; number <= lines; number++) {
                    line.row(id, number, text.between(1, items), text.between(1, 300), text.between(0, 30) + ".00",
                        text.sentence(20, 100));
                }
                card.row(id, text.oneOf(Words.CARDS), text.digits(16, 16), text.letters(14, 30),
                    Text.TODAY.plusDays(text.between(10, 730)), text.letters(15, 15), total, shipped,
                    text.between(1, Countries.NAMES.length));
            }
        }
    }
}
