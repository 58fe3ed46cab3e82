package store.pages;

import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import store.Database;
import store.Interaction;
import store.Page;
import store.Refused;
import store.Request;

/** Everything about an item. */
public final class ProductDetail extends Interaction {
    private static final long serialVersionUID = 1;

    public ProductDetail(Database database) {
        super(database, "Product Detail");
    }

    @Override
    protected void answer(Request request, Page page) throws SQLException, Refused {
        int item = request.neededNumber("I_ID");
        String query = "select i_title, a_fname, a_lname, i_subject, i_publisher, i_pub_date, i_desc, i_srp, i_cost, i_backing,"
            + " i_page, i_isbn, i_dimensions, i_avail, i_image from item join author on i_a_id = a_id where i_id = ?";
        database().<Void>read(connection -> {
            try (PreparedStatement statement = Database.prepare(connection, query, item);
                    ResultSet row = statement.executeQuery()) {
                if (!row.next()) {
                    throw new Refused("no such item");
                }
                page.raw("<p id=\"item\">Item ").raw(item).raw("</p>\n<h2>").say(row.getString(1)).raw("</h2>\n<p>by ")
                    .say(row.getString(2)).raw(" ").say(row.getString(3)).raw("</p>\n")
                    .image("/images/" + row.getString(15), row.getString(1)).raw("<table>");
                String[] names = {"Subject", "Publisher", "Published", "Description", "Suggested price", "Our price", "Backing",
                    "Pages", "ISBN", "Dimensions", "Available"};
                for (int index = 0; index < names.length; index++) {
                    page.raw("<tr><th>").raw(names[index]).raw("</th><td>").say(row.getString(index + 4)).raw("</td></tr>\n");
                }
                page.raw("</table>\n");
            }
            return null;
        });
        page.link("shopping_cart", "&ADD_FLAG=Y&I_ID=" + item, "Add to cart").raw(" ")
            .link("admin_request", "&I_ID=" + item, "Update");
    }
}
