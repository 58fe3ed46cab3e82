package store.pages;

import java.sql.SQLException;
import store.Database;
import store.Interaction;
import store.Page;
import store.Promotion;
import store.Refused;
import store.Request;

/** The fifty newest items of a subject. */
public final class NewProducts extends Interaction {
    private static final long serialVersionUID = 1;

    public NewProducts(Database database) {
        super(database, "New Products");
    }

    @Override
    protected void answer(Request request, Page page) throws SQLException, Refused {
        String subject = Listing.subject(request, "SUBJECT");
        page.raw("<h2>").say(subject).raw("</h2>\n");
        database().<Void>read(connection -> {
            Promotion.write(connection, database(), request, page);
            Listing.write(connection, page, Listing.COLUMNS + "item join author on i_a_id = a_id where i_subject = ?"
                + " order by i_pub_date desc, i_title limit " + Listing.ROWS_MAX, subject);
            return null;
        });
    }
}
