package store.pages;

import java.sql.SQLException;
import store.Database;
import store.Interaction;
import store.Page;
import store.Promotion;
import store.Refused;
import store.Request;

/** The fifty items of a subject that were sold most in the last 3,333 orders. */
public final class BestSellers extends Interaction {
    private static final long serialVersionUID = 1;
    private static final int ORDERS = 3333;

    public BestSellers(Database database) {
        super(database, "Best Sellers");
    }

    @Override
    protected void answer(Request request, Page page) throws SQLException, Refused {
        String subject = Listing.subject(request, "SUBJECT");
        page.raw("<h2>").say(subject).raw("</h2>\n");
        // The orders' lines are read once, by their primary key; the items' subjects decide afterwards.
        String query = Listing.COLUMNS + "(select ol_i_id, sum(ol_qty) as sold from order_line"
            + " where ol_o_id > (select max(o_id) - " + ORDERS + " from orders) group by ol_i_id) as recent"
            + " join item on i_id = ol_i_id join author on a_id = i_a_id where i_subject = ?"
            + " order by sold desc, i_id limit " + Listing.ROWS_MAX;
        database().<Void>read(connection -> {
            Promotion.write(connection, database(), request, page);
            Listing.write(connection, page, query, subject);
            return null;
        });
    }
}
