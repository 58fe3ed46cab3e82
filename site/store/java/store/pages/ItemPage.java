package store.pages;

import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import store.Database;
import store.Interaction;
import store.Page;
import store.Refused;
import store.Request;

/** A page about one item. It begins with the item's title and its author. */
abstract class ItemPage extends Interaction {
    private static final long serialVersionUID = 1;
    /** What the row begins with; the page's own columns follow. */
    static final int COMMON_COLUMNS = 3;

    private final transient String query;

    ItemPage(Database database, String title, String columns) {
        super(database, title);
        query = "select i_title, a_fname, a_lname, " + columns + " from item join author on i_a_id = a_id where i_id = ?";
    }

    /** Writes what the page is for. */
    abstract void about(int item, ResultSet row, Page page) throws SQLException;

    @Override
    protected final void answer(Request request, Page page) throws SQLException, Refused {
        int item = request.neededNumber("I_ID");
        database().<Void>read(connection -> {
            try (PreparedStatement statement = Database.prepare(connection, query, item);
                    ResultSet row = statement.executeQuery()) {
                if (!row.next()) {
                    throw new Refused("no such item");
                }
                page.raw("<p id=\"item\">Item ").raw(item).raw("</p>\n<h2>").say(row.getString(1)).raw("</h2>\n<p>by ")
                    .say(row.getString(2)).raw(" ").say(row.getString(3)).raw("</p>\n");
                about(item, row, page);
            }
            return null;
        });
    }
}
