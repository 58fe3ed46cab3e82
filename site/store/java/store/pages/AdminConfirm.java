package store.pages;

import java.math.BigDecimal;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.LinkedHashSet;
import java.util.Set;
import store.Database;
import store.Interaction;
import store.Page;
import store.Refused;
import store.Request;

/**
 * Changes an item, and finds its related items anew: the five that were bought most by those who bought it in the last 10,000
 * orders.
 */
public final class AdminConfirm extends Interaction {
    private static final long serialVersionUID = 1;
    private static final int ORDERS = 10_000;
    private static final int RELATED = 5;
    /** Names of pictures as the generator makes them: a page must not be made to show anything else. */
    private static final String PICTURE = "img\\d{1,2}/(thumb|image)_\\d{1,7}\\.png";

    public AdminConfirm(Database database) {
        super(database, "Admin Confirm");
    }

    @Override
    protected void answer(Request request, Page page) throws SQLException, Refused {
        int item = request.neededNumber("I_ID");
        String cost = request.needed("I_NEW_COST", 12);
        String image = request.needed("I_NEW_IMAGE", 60);
        String thumbnail = request.needed("I_NEW_THUMBNAIL", 60);
        if (!cost.matches("\\d{1,7}(\\.\\d{1,2})?") || !image.matches(PICTURE) || !thumbnail.matches(PICTURE)) {
            throw new Refused("these are no price and pictures");
        }
        Set<Integer> related = database().change(connection -> {
            Set<Integer> found = related(connection, item);
            Object[] values = new Object[RELATED + 4];
            int place = 0;
            values[place++] = new BigDecimal(cost);
            values[place++] = image;
            values[place++] = thumbnail;
            for (Integer other : found) {
                values[place++] = other;
            }
            values[place] = item;
            if (Database.run(connection, "update item set i_cost = ?, i_image = ?, i_thumbnail = ?, i_pub_date = current_date,"
                    + " i_related1 = ?, i_related2 = ?, i_related3 = ?, i_related4 = ?, i_related5 = ? where i_id = ?",
                    values) == 0) {
                throw new Refused("no such item");
            }
            return found;
        });
        page.raw("<p id=\"item\">Item ").raw(item).raw("</p>\n<p>Price: $").say(cost).raw("</p>\n<p>Related: ").say(related)
            .raw("</p>\n").image("/images/" + image, "Picture").image("/images/" + thumbnail, "Thumbnail");
    }

    private Set<Integer> related(Connection connection, int item) throws SQLException {
        String query = "select other.ol_i_id, sum(other.ol_qty) as sold from order_line mine"
            + " join orders bought on bought.o_id = mine.ol_o_id"
            + " join orders theirs on theirs.o_c_id = bought.o_c_id"
            + " join order_line other on other.ol_o_id = theirs.o_id and other.ol_i_id <> mine.ol_i_id"
            + " where mine.ol_i_id = ? and mine.ol_o_id > (select max(o_id) - " + ORDERS + " from orders)"
            + " and theirs.o_id > (select max(o_id) - " + ORDERS + " from orders)"
            + " group by other.ol_i_id order by sold desc, other.ol_i_id limit " + RELATED;
        Set<Integer> found = new LinkedHashSet<>();
        try (PreparedStatement statement = Database.prepare(connection, query, item);
                ResultSet row = statement.executeQuery()) {
            while (row.next()) {
                found.add(row.getInt(1));
            }
        }
        // Fewer than five were bought together: the next numbers make them up.
        for (int next = item % database().items() + 1; found.size() < RELATED; next = next % database().items() + 1) {
            if (next != item) {
                found.add(next);
            }
        }
        return found;
    }
}
