package store.pages;

import java.sql.ResultSet;
import java.sql.SQLException;
import store.Database;
import store.Page;

/** Everything about an item. */
public final class ProductDetail extends ItemPage {
    private static final long serialVersionUID = 1;

    public ProductDetail(Database database) {
        super(database, "Product Detail", "i_image, i_subject, i_publisher, i_pub_date, i_desc, i_srp, i_cost, i_backing, i_page,"
            + " i_isbn, i_dimensions, i_avail");
    }

    @Override
    void about(int item, ResultSet row, Page page) throws SQLException {
        page.image("/images/" + row.getString(COMMON_COLUMNS + 1), row.getString(1)).raw("<table>");
        String[] names = {"Subject", "Publisher", "Published", "Description", "Suggested price", "Our price", "Backing", "Pages",
            "ISBN", "Dimensions", "Available"};
        for (int index = 0; index < names.length; index++) {
            page.raw("<tr><th>").raw(names[index]).raw("</th><td>").say(row.getString(COMMON_COLUMNS + 2 + index))
                .raw("</td></tr>\n");
        }
        page.raw("</table>\n").link("shopping_cart", "&ADD_FLAG=Y&I_ID=" + item, "Add to cart").raw(" ")
            .link("admin_request", "&I_ID=" + item, "Update");
    }
}
