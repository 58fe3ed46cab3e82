package store.pages;

import java.sql.SQLException;
import store.Cart;
import store.Customer;
import store.Database;
import store.Interaction;
import store.Page;
import store.Refused;
import store.Request;
import store.Words;

/** A customer says who he is, or is registered, and sees what he would buy. */
public final class BuyRequest extends Interaction {
    private static final long serialVersionUID = 1;

    public BuyRequest(Database database) {
        super(database, "Buy Request");
    }

    @Override
    protected void answer(Request request, Page page) throws SQLException, Refused {
        boolean returning = request.text("RETURNING_FLAG", 1).equals("Y");
        Customer customer = database().change(connection -> {
            if (!returning) {
                return Customer.register(connection, request);
            }
            Customer known = Customer.known(connection, request.needed("UNAME", 20), request.needed("PASSWD", 20));
            Customer.logIn(connection, known.id());
            return known;
        });
        int id = request.cart();
        if (id < 0) {
            throw new Refused("SHOPPING_ID is missing");
        }
        Cart cart = database().read(connection -> Cart.load(connection, id));
        page.belongsTo(customer.id());
        customer.write(page);
        page.raw("<p id=\"number\">Cart ").raw(cart.id()).raw("</p>\n");
        cart.write(page, false, customer.discount());
        cart.writeTotals(page, customer.discount());
        page.openForm("buy_confirm", "post").choice("Card", "CC_TYPE", Words.CARDS).field("Number", "CC_NUMBER", "")
            .field("Name", "CC_NAME", customer.firstName() + " " + customer.lastName()).field("Expires", "CC_EXPIRY", "")
            .choice("Shipping", "SHIPPING", Words.SHIPPING).field("Street", "STREET_1", "").field("Street", "STREET_2", "")
            .field("City", "CITY", "").field("State", "STATE", "").field("Zip", "ZIP", "").field("Country", "COUNTRY", "")
            .closeForm("Buy");
    }
}
