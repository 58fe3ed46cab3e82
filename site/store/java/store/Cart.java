package store;

import java.math.BigDecimal;
import java.math.RoundingMode;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.List;

/** A shopping cart as it is in the database, and what it costs. */
public final class Cart {
    /** Sales tax. */
    private static final BigDecimal TAX = new BigDecimal("0.0825");
    /** Shipping: so much for the order and so much for each thing in it. */
    private static final BigDecimal SHIPPING = new BigDecimal("3.00");

    /** A line of it. */
    public record Line(int item, int quantity, String title, BigDecimal cost, BigDecimal price, String backing) {}

    private final int id;
    private final List<Line> lines;

    private Cart(int id, List<Line> lines) {
        this.id = id;
        this.lines = lines;
    }

    public static Cart load(Connection connection, int id) throws SQLException {
        List<Line> lines = new ArrayList<>();
        String query = "select i_id, scl_qty, i_title, i_cost, i_srp, i_backing from shopping_cart_line join item"
            + " on scl_i_id = i_id where scl_sc_id = ? order by i_id";
        try (PreparedStatement statement = Database.prepare(connection, query, id);
                ResultSet row = statement.executeQuery()) {
            while (row.next()) {
                lines.add(new Line(row.getInt(1), row.getInt(2), row.getString(3), row.getBigDecimal(4), row.getBigDecimal(5),
                    row.getString(6)));
            }
        }
        return new Cart(id, lines);
    }

    /** For tests. */
    static Cart of(List<Line> lines) {
        return new Cart(1, lines);
    }

    public int id() {
        return id;
    }

    public List<Line> lines() {
        return lines;
    }

    public boolean isEmpty() {
        return lines.isEmpty();
    }

    private int things() {
        return lines.stream().mapToInt(Line::quantity).sum();
    }

    /** What the things cost with a customer's discount, in percent. */
    public BigDecimal subTotal(BigDecimal discount) {
        BigDecimal sum = BigDecimal.ZERO;
        for (Line line : lines) {
            sum = sum.add(line.cost().multiply(BigDecimal.valueOf(line.quantity())));
        }
        BigDecimal paid = BigDecimal.ONE.subtract(discount.movePointLeft(2));
        return sum.multiply(paid).setScale(2, RoundingMode.HALF_UP);
    }

    public BigDecimal tax(BigDecimal discount) {
        return subTotal(discount).multiply(TAX).setScale(2, RoundingMode.HALF_UP);
    }

    public BigDecimal shipping() {
        return SHIPPING.add(BigDecimal.valueOf(things()));
    }

    public BigDecimal total(BigDecimal discount) {
        return subTotal(discount).add(tax(discount)).add(shipping());
    }

    /** The table that cart, buy request and buy confirm show. With {@code editable} it has fields for the quantities. */
    public void write(Page page, boolean editable, BigDecimal discount) {
        page.raw("<table id=\"cart\"><tr><th>Quantity</th><th>Title</th><th>Price</th><th>Your price</th></tr>\n");
        for (Line line : lines) {
            page.raw("<tr><td>");
            if (editable) {
                page.raw("<input name=\"QTY_").raw(line.item()).raw("\" value=\"").raw(line.quantity()).raw("\">");
            } else {
                page.raw(line.quantity());
            }
            page.raw("</td><td>").link("product_detail", "&I_ID=" + line.item(), line.title()).raw(" (").say(line.backing())
                .raw(")</td><td>$").say(line.price()).raw("</td><td>$").say(line.cost()).raw("</td></tr>\n");
        }
        page.raw("</table>\n<p id=\"subtotal\">Subtotal: $").say(subTotal(discount)).raw("</p>\n");
    }

    /** Tax, shipping and the total, where the customer is known. */
    public void writeTotals(Page page, BigDecimal discount) {
        page.raw("<p>Discount: ").say(discount).raw(" %, tax: $").say(tax(discount)).raw(", shipping: $").say(shipping())
            .raw("</p>\n<p id=\"total\">Total: $").say(total(discount)).raw("</p>\n");
    }
}
