package store.pages;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import store.Customer;
import store.Database;
import store.Interaction;
import store.Page;
import store.Refused;
import store.Request;

/** A customer's last order, with its lines. */
public final class OrderDisplay extends Interaction {
    private static final long serialVersionUID = 1;

    public OrderDisplay(Database database) {
        super(database, "Order Display");
    }

    @Override
    protected void answer(Request request, Page page) throws SQLException, Refused {
        database().<Void>read(connection -> {
            Customer customer = Customer.known(connection, request.needed("UNAME", 20), request.needed("PASSWD", 20));
            customer.write(page);
            int order = order(connection, customer, page);
            if (order < 0) {
                page.raw("<p id=\"order\">No order</p>\n");
            } else {
                lines(connection, order, page);
            }
            return null;
        });
    }

    private static int order(Connection connection, Customer customer, Page page) throws SQLException {
        String query = "select o_id, o_date, o_sub_total, o_tax, o_total, o_ship_type, o_ship_date, o_status, cx_type,"
            + " ship.addr_street1, ship.addr_street2, ship.addr_city, ship.addr_zip, ship_in.co_name, bill.addr_street1,"
            + " bill.addr_street2, bill.addr_city, bill.addr_zip, bill_in.co_name"
            + " from orders join cc_xacts on cx_o_id = o_id"
            + " join address ship on o_ship_addr_id = ship.addr_id join country ship_in on ship.addr_co_id = ship_in.co_id"
            + " join address bill on o_bill_addr_id = bill.addr_id join country bill_in on bill.addr_co_id = bill_in.co_id"
            + " where o_c_id = ? order by o_id desc limit 1";
        try (PreparedStatement statement = Database.prepare(connection, query, customer.id());
                ResultSet row = statement.executeQuery()) {
            if (!row.next()) {
                return -1;
            }
            page.raw("<p id=\"order\">Order ").raw(row.getInt(1)).raw("</p>\n<table>");
            String[] names = {"Date", "Subtotal", "Tax", "Total", "Shipping", "Shipping date", "Status", "Card"};
            for (int index = 0; index < names.length; index++) {
                page.raw("<tr><th>").raw(names[index]).raw("</th><td>").say(row.getString(index + 2)).raw("</td></tr>\n");
            }
            page.raw("</table>\n<p>Shipped to: ");
            for (int index = 10; index <= 14; index++) {
                page.say(row.getString(index)).raw(" ");
            }
            page.raw("</p>\n<p>Billed to: ");
            for (int index = 15; index <= 19; index++) {
                page.say(row.getString(index)).raw(" ");
            }
            page.raw("</p>\n");
            return row.getInt(1);
        }
    }

    private static void lines(Connection connection, int order, Page page) throws SQLException {
        String query = "select ol_i_id, i_title, i_publisher, i_cost, ol_qty, ol_discount, ol_comments from order_line join item"
            + " on ol_i_id = i_id where ol_o_id = ? order by ol_id";
        page.raw("<table id=\"lines\"><tr><th>Item</th><th>Publisher</th><th>Price</th><th>Quantity</th><th>Discount</th>"
            + "<th>Comments</th></tr>\n");
        try (PreparedStatement statement = Database.prepare(connection, query, order);
                ResultSet row = statement.executeQuery()) {
            while (row.next()) {
                page.raw("<tr><td>").link("product_detail", "&I_ID=" + row.getInt(1), row.getString(2)).raw("</td>");
                for (int index = 3; index <= 7; index++) {
                    page.raw("<td>").say(row.getString(index)).raw("</td>");
                }
                page.raw("</tr>\n");
            }
        }
        page.raw("</table>\n");
    }
}
