package store;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.concurrent.ThreadLocalRandom;

/** Promotional processing: the five items that are related to one taken at random. */
public final class Promotion {
    private Promotion() {}

    /** {@code PROMO=n} in a request takes the item's place that is taken at random, so that pages can be compared. */
    public static void write(Connection connection, Database database, Request request, Page page)
            throws SQLException, Refused {
        int chosen = request.number("PROMO");
        if (chosen < 0) {
            chosen = ThreadLocalRandom.current().nextInt(database.items()) + 1;
        }
        String query = "select j.i_id, j.i_thumbnail from item i join item j"
            + " on j.i_id in (i.i_related1, i.i_related2, i.i_related3, i.i_related4, i.i_related5)"
            + " where i.i_id = ? order by j.i_id";
        page.raw("<section><h2>Today's offers</h2>");
        try (PreparedStatement statement = Database.prepare(connection, query, chosen);
                ResultSet row = statement.executeQuery()) {
            while (row.next()) {
                page.thumbnail(row.getInt(1), row.getString(2));
            }
        }
        page.raw("</section>\n");
    }
}
