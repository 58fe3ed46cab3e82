package store.pages;

import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import store.Database;
import store.Interaction;
import store.Page;
import store.Promotion;
import store.Refused;
import store.Request;
import store.Words;

/** The front page: a greeting where the customer is known, offers, and the subjects. */
public final class Home extends Interaction {
    private static final long serialVersionUID = 1;

    public Home(Database database) {
        super(database, "Home");
    }

    @Override
    protected void answer(Request request, Page page) throws SQLException, Refused {
        database().<Void>read(connection -> {
            if (request.customer() >= 0) {
                String query = "select c_fname, c_lname from customer where c_id = ?";
                try (PreparedStatement statement = Database.prepare(connection, query, request.customer());
                        ResultSet row = statement.executeQuery()) {
                    if (row.next()) {
                        page.raw("<p id=\"greeting\">Welcome back, ").say(row.getString(1)).raw(" ").say(row.getString(2))
                            .raw(".</p>\n");
                    }
                }
            }
            Promotion.write(connection, database(), request, page);
            return null;
        });
        page.raw("<table id=\"subjects\"><tr><th>New products</th><th>Best sellers</th></tr>\n");
        for (String subject : Words.SUBJECTS) {
            page.raw("<tr><td>").link("new_products", "&SUBJECT=" + subject, subject).raw("</td><td>")
                .link("best_sellers", "&SUBJECT=" + subject, subject).raw("</td></tr>\n");
        }
        page.raw("</table>\n");
    }
}
