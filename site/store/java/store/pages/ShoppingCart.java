package store.pages;

import java.math.BigDecimal;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.concurrent.ThreadLocalRandom;
import store.Cart;
import store.Database;
import store.Interaction;
import store.Page;
import store.Promotion;
import store.Refused;
import store.Request;

/**
 * The cart: made if there is none; an item is added ({@code ADD_FLAG=Y}), quantities are changed ({@code QTY_item}), and one that
 * would be empty gets an item related to one taken at random.
 */
public final class ShoppingCart extends Interaction {
    private static final long serialVersionUID = 1;
    /** How many different items a cart holds at most. */
    private static final int LINES_MAX = 100;

    public ShoppingCart(Database database) {
        super(database, "Shopping Cart");
    }

    @Override
    protected void answer(Request request, Page page) throws SQLException, Refused {
        Cart cart = database().change(connection -> {
            int id = request.cart();
            if (id < 0) {
                id = Database.insert(connection, "insert into shopping_cart (sc_time) values (current_timestamp)");
            } else if (Database.run(connection, "update shopping_cart set sc_time = current_timestamp where sc_id = ?", id) == 0
                    && Database.number(connection, "select count(*) from shopping_cart where sc_id = ?", id) == 0) {
                throw new Refused("no such cart");
            }
            if (request.text("ADD_FLAG", 1).equals("Y")) {
                add(connection, id, request.neededNumber("I_ID"));
            }
            Cart now = Cart.load(connection, id);
            boolean changed = refresh(connection, now, request);
            if (changed) {
                now = Cart.load(connection, id);
            }
            if (now.isEmpty()) {
                add(connection, id, something(connection));
                now = Cart.load(connection, id);
            }
            return now;
        });
        page.hasCart(cart.id());
        database().<Void>read(connection -> {
            Promotion.write(connection, database(), request, page);
            return null;
        });
        page.raw("<p id=\"number\">Cart ").raw(cart.id()).raw("</p>\n").openForm("shopping_cart", "get");
        cart.write(page, true, BigDecimal.ZERO);
        page.closeForm("Update quantities");
        page.link("customer_registration", "", "Check out");
    }

    private void add(Connection connection, int cart, int item) throws SQLException, Refused {
        if (item < 1 || item > database().items()) {
            throw new Refused("no such item");
        }
        if (Database.number(connection, "select count(*) from shopping_cart_line where scl_sc_id = ?", cart) < LINES_MAX) {
            Database.run(connection, "insert into shopping_cart_line (scl_sc_id, scl_i_id, scl_qty) values (?, ?, 1)"
                + database().dialect().oneMore("shopping_cart_line", "scl_sc_id, scl_i_id", "scl_qty"), cart, item);
        }
    }

    /** Quantities that differ; none of a thing takes it out. */
    private static boolean refresh(Connection connection, Cart cart, Request request) throws SQLException, Refused {
        boolean changed = false;
        for (Cart.Line line : cart.lines()) {
            int wanted = request.number("QTY_" + line.item());
            if (wanted < 0 || wanted == line.quantity()) {
                continue;
            }
            changed = true;
            if (wanted == 0) {
                Database.run(connection, "delete from shopping_cart_line where scl_sc_id = ? and scl_i_id = ?", cart.id(),
                    line.item());
            } else {
                Database.run(connection, "update shopping_cart_line set scl_qty = ? where scl_sc_id = ? and scl_i_id = ?",
                    wanted, cart.id(), line.item());
            }
        }
        return changed;
    }

    private int something(Connection connection) throws SQLException {
        int start = ThreadLocalRandom.current().nextInt(database().items()) + 1;
        try (PreparedStatement statement = Database.prepare(connection, "select i_related1 from item where i_id = ?", start);
                ResultSet row = statement.executeQuery()) {
            return row.next() ? row.getInt(1) : start;
        }
    }
}
