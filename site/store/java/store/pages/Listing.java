package store.pages;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.Arrays;
import store.Database;
import store.Page;
import store.Refused;
import store.Request;
import store.Words;

/** A table of up to fifty items with their authors, as three interactions show it. */
final class Listing {
    /** How many a page shows. */
    static final int ROWS_MAX = 50;
    static final String COLUMNS = "select i_id, i_title, a_fname, a_lname from ";

    private Listing() {}

    /** One of the twenty-four subjects. */
    static String subject(Request request, String name) throws Refused {
        String subject = request.needed(name, 60);
        if (!Arrays.asList(Words.SUBJECTS).contains(subject)) {
            throw new Refused("no such subject");
        }
        return subject;
    }

    static void write(Connection connection, Page page, String query, Object... values) throws SQLException {
        page.raw("<table id=\"items\"><tr><th>Author</th><th>Title</th></tr>\n");
        int rows = 0;
        try (PreparedStatement statement = Database.prepare(connection, query, values);
                ResultSet row = statement.executeQuery()) {
            while (row.next()) {
                page.raw("<tr><td>").say(row.getString(3)).raw(" ").say(row.getString(4)).raw("</td><td>")
                    .link("product_detail", "&I_ID=" + row.getInt(1), row.getString(2)).raw("</td></tr>\n");
                rows++;
            }
        }
        page.raw("</table>\n<p id=\"found\">").raw(rows).raw(" items</p>\n");
    }
}
