package store.pages;

import java.sql.Connection;
import java.sql.Date;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Timestamp;
import java.time.LocalDateTime;
import java.util.Locale;
import java.util.concurrent.ThreadLocalRandom;
import store.Cart;
import store.Customer;
import store.Database;
import store.Interaction;
import store.Page;
import store.Refused;
import store.Request;

/**
 * The order: the cart becomes an order with its lines, stock goes down, the card's transaction is entered and the cart is
 * emptied, all in one transaction. So a cart is ordered once, whatever becomes of the answer.
 */
public final class BuyConfirm extends Interaction {
    private static final long serialVersionUID = 1;
    /** Stock that would fall below the one is made up by the other. */
    private static final int STOCK_MIN = 10;
    private static final int STOCK_MORE = 21;

    public BuyConfirm(Database database) {
        super(database, "Buy Confirm");
    }

    private record Done(int order, Cart cart, Customer customer) {}

    @Override
    protected void answer(Request request, Page page) throws SQLException, Refused {
        Done done = database().change(connection -> {
            int id = request.cart();
            // The row is locked, so that two orders for one cart come one after the other, and the second finds it empty.
            try (PreparedStatement statement = Database.prepare(connection,
                    "select sc_id from shopping_cart where sc_id = ? for update", id);
                    ResultSet row = statement.executeQuery()) {
                if (!row.next()) {
                    throw new Refused("no such cart");
                }
            }
            Cart cart = Cart.load(connection, id);
            if (cart.isEmpty()) {
                throw new Refused("the cart is empty");
            }
            Customer customer = Customer.byId(connection, request.customer());
            int order = enter(connection, request, cart, customer);
            return new Done(order, cart, customer);
        });
        page.raw("<p id=\"order\">Order ").raw(done.order()).raw("</p>\n");
        done.customer().write(page);
        done.cart().write(page, false, done.customer().discount());
        done.cart().writeTotals(page, done.customer().discount());
        page.raw("<p>Thank you.</p>\n");
    }

    private static int enter(Connection connection, Request request, Cart cart, Customer customer)
            throws SQLException, Refused {
        int home = customer.address().id();
        int shipTo = request.has("STREET_1") ? Customer.addressOf(connection, request) : home;
        int order = Database.insert(connection, "insert into orders (o_c_id, o_date, o_sub_total, o_tax, o_total, o_ship_type,"
            + " o_ship_date, o_bill_addr_id, o_ship_addr_id, o_status) values (?, current_timestamp, ?, ?, ?, ?, ?, ?, ?,"
            + " 'PENDING')", customer.id(), cart.subTotal(customer.discount()), cart.tax(customer.discount()),
            cart.total(customer.discount()), request.needed("SHIPPING", 10), shipping(), home,
            shipTo);
        int number = 0;
        for (Cart.Line line : cart.lines()) {
            Database.run(connection, "insert into order_line (ol_o_id, ol_id, ol_i_id, ol_qty, ol_discount, ol_comments)"
                + " values (?, ?, ?, ?, ?, ?)", order, ++number, line.item(), line.quantity(), customer.discount(), "");
        }
        // Lines are in the order of their items, so orders lock items in one order.
        for (Cart.Line line : cart.lines()) {
            Database.run(connection, "update item set i_stock = i_stock - ? + case when i_stock - ? < ? then ? else 0 end"
                + " where i_id = ?",
                line.quantity(), line.quantity(), STOCK_MIN, STOCK_MORE, line.item());
        }
        Date expiry = Request.date(request.needed("CC_EXPIRY", 10), "this is no card");
        String card = request.needed("CC_NUMBER", 16);
        if (!card.matches("\\d{16}")) {
            throw new Refused("this is no card");
        }
        Database.run(connection, "insert into cc_xacts (cx_o_id, cx_type, cx_num, cx_name, cx_expiry, cx_auth_id, cx_xact_amt,"
            + " cx_xact_date, cx_co_id) values (?, ?, ?, ?, ?, ?, ?, current_timestamp, ?)", order, request.needed("CC_TYPE", 10), card,
            request.needed("CC_NAME", 31), expiry, authorisation(), cart.total(customer.discount()),
            customer.address().countryId());
        Database.run(connection, "delete from shopping_cart_line where scl_sc_id = ?", cart.id());
        return order;
    }

    /** A day of the coming week. */
    private static Timestamp shipping() {
        return Timestamp.valueOf(LocalDateTime.now().plusDays(ThreadLocalRandom.current().nextInt(1, 8)).withNano(0));
    }

    /** What a payment gateway would answer. There is none here: docs/site.md. */
    private static String authorisation() {
        return String.format(Locale.ROOT, "%015d", ThreadLocalRandom.current().nextLong(1_000_000_000_000_000L));
    }
}
