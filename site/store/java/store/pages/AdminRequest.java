package store.pages;

import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import store.Database;
import store.Interaction;
import store.Page;
import store.Refused;
import store.Request;

/** The form with which a clerk changes an item's price and pictures. */
public final class AdminRequest extends Interaction {
    private static final long serialVersionUID = 1;

    public AdminRequest(Database database) {
        super(database, "Admin Request");
    }

    @Override
    protected void answer(Request request, Page page) throws SQLException, Refused {
        int item = request.neededNumber("I_ID");
        String query = "select i_title, a_fname, a_lname, i_cost, i_srp, i_image, i_thumbnail from item join author"
            + " on i_a_id = a_id where i_id = ?";
        database().<Void>read(connection -> {
            try (PreparedStatement statement = Database.prepare(connection, query, item);
                    ResultSet row = statement.executeQuery()) {
                if (!row.next()) {
                    throw new Refused("no such item");
                }
                page.raw("<p id=\"item\">Item ").raw(item).raw("</p>\n<h2>").say(row.getString(1)).raw("</h2>\n<p>by ")
                    .say(row.getString(2)).raw(" ").say(row.getString(3)).raw("</p>\n")
                    .image("/images/" + row.getString(6), "Picture").image("/images/" + row.getString(7), "Thumbnail")
                    .openForm("admin_confirm", "post").hidden("I_ID", item)
                    .field("New price, until now " + row.getString(4), "I_NEW_COST", "")
                    .field("New picture", "I_NEW_IMAGE", row.getString(6))
                    .field("New thumbnail", "I_NEW_THUMBNAIL", row.getString(7)).closeForm("Change");
            }
            return null;
        });
    }
}
