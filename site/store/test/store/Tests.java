package store;

import java.math.BigDecimal;
import java.util.List;

/** The store's tests that need no database: a few seconds, no library. */
public final class Tests {
    private static int failures;

    private Tests() {}

    public static void main(String[] words) throws Exception {
        digSyl();
        totals();
        escapes();
        dialects();
        store.data.GenerateTests.run();
        if (failures > 0) {
            System.exit(1);
        }
        System.err.println("store: all tests passed");
    }

    public static void equal(String what, Object expected, Object found) {
        if (!expected.equals(found)) {
            failures++;
            System.err.println("FAILED " + what + ": expected " + expected + ", found " + found);
        }
    }

    private static void digSyl() {
        equal("digSyl", "OGALRIRESEATULINNGBA", Words.digSyl(1234567890L, 0));
        equal("digSyl, padded", "BABABABABAREAL", Words.digSyl(42, 7));
        equal("subjects", 24, Words.SUBJECTS.length);
    }

    private static void dialects() {
        equal("of a URL", Dialect.POSTGRESQL, Dialect.of("jdbc:postgresql://127.0.0.1:5432/store"));
        equal("of another", Dialect.MARIADB, Dialect.of("jdbc:mariadb://127.0.0.1:3306/store"));
        equal("one more", " on conflict (a, b) do update set n = t.n + 1", Dialect.POSTGRESQL.oneMore("t", "a, b", "n"));
        equal("deadlocks", List.of(true, true, false, false),
            List.of(Dialect.isDeadlock("40001"), Dialect.isDeadlock("40P01"), Dialect.isDeadlock("23000"), Dialect.isDeadlock(null)));
    }

    private static void totals() {
        Cart cart = Cart.of(List.of(new Cart.Line(1, 2, "a", new BigDecimal("10.00"), BigDecimal.TEN, "USED"),
            new Cart.Line(2, 1, "b", new BigDecimal("5.55"), BigDecimal.TEN, "USED")));
        BigDecimal none = BigDecimal.ZERO;
        equal("subtotal", new BigDecimal("25.55"), cart.subTotal(none));
        equal("tax", new BigDecimal("2.11"), cart.tax(none));
        equal("shipping", new BigDecimal("6.00"), cart.shipping());
        equal("total", new BigDecimal("33.66"), cart.total(none));
        equal("subtotal at half price", new BigDecimal("12.78"), cart.subTotal(new BigDecimal("50.00")));
    }

    private static void escapes() {
        equal("plain", "abc", Page.escape("abc"));
        equal("markup", "&lt;a href=&quot;x&amp;y&quot;&gt;", Page.escape("<a href=\"x&y\">"));
        Page page = new Page("T", 7, -1);
        equal("address", "/store/home?C_ID=7&I_ID=3", page.address("home", "&I_ID=3"));
    }
}
