package store.pages;

import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import store.Database;
import store.Interaction;
import store.Page;
import store.Refused;
import store.Request;

/** Asks who wants to see his last order. */
public final class OrderInquiry extends Interaction {
    private static final long serialVersionUID = 1;

    public OrderInquiry(Database database) {
        super(database, "Order Inquiry");
    }

    @Override
    protected void answer(Request request, Page page) throws SQLException, Refused {
        String name = request.customer() < 0 ? "" : database().read(connection -> {
            String query = "select c_uname from customer where c_id = ?";
            try (PreparedStatement statement = Database.prepare(connection, query, request.customer());
                    ResultSet row = statement.executeQuery()) {
                return row.next() ? row.getString(1) : "";
            }
        });
        page.openForm("order_display", "post").field("Name", "UNAME", name).field("Password", "PASSWD", "")
            .closeForm("Show my last order");
    }
}
