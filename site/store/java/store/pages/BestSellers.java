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
        // From the subject's items to their recent lines, which the index holds: from the lines of 3,333 orders to their items it
        // takes ten times as long.
        String query = Listing.COLUMNS + "(select i_id, i_title, i_a_id, sum(ol_qty) as sold from item"
            + " " + database().dialect().joinInOrder() + " order_line on ol_i_id = i_id"
            + " where i_subject = ? and ol_o_id > (select max(o_id) - " + ORDERS + " from orders)"
            + " group by i_id order by sold desc, i_id limit " + Listing.ROWS_MAX + ") as best join author on a_id = i_a_id"
            + " order by sold desc, i_id";
        database().<Void>read(connection -> {
            Promotion.write(connection, database(), request, page);
            Listing.write(connection, page, query, subject);
            return null;
        });
    }
}
