package store.pages;

import java.sql.SQLException;
import store.Database;
import store.Interaction;
import store.Page;
import store.Promotion;
import store.Refused;
import store.Request;

/** What a search found: titles and names that begin with a word, or a subject. */
public final class SearchResult extends Interaction {
    private static final long serialVersionUID = 1;

    public SearchResult(Database database) {
        super(database, "Search Result");
    }

    @Override
    protected void answer(Request request, Page page) throws SQLException, Refused {
        String kind = request.needed("TYPE", 7);
        String words = request.needed("SEARCH", 60);
        if (words.indexOf('%') >= 0 || words.indexOf('_') >= 0) {
            throw new Refused("letters and digits are searched for");
        }
        page.raw("<p>Searched for ").say(kind).raw(" ").say(words).raw("</p>\n");
        String end = " order by i_title limit " + Listing.ROWS_MAX;
        database().<Void>read(connection -> {
            Promotion.write(connection, database(), request, page);
            switch (kind) {
                case "author" -> Listing.write(connection, page, Listing.COLUMNS
                    + "author join item on i_a_id = a_id where a_lname like ?" + end, words + "%");
                case "title" -> Listing.write(connection, page, Listing.COLUMNS
                    + "item join author on i_a_id = a_id where i_title like ?" + end, words + "%");
                case "subject" -> Listing.write(connection, page, Listing.COLUMNS
                    + "item join author on i_a_id = a_id where i_subject = ?" + end, Listing.subject(request, "SEARCH"));
                default -> throw new Refused("TYPE is author, title or subject");
            }
            return null;
        });
    }
}
