package store.pages;

import java.sql.SQLException;
import store.Database;
import store.Interaction;
import store.Page;
import store.Promotion;
import store.Refused;
import store.Request;

/** The form for a search by author, title or subject. */
public final class SearchRequest extends Interaction {
    private static final long serialVersionUID = 1;
    static final String[] KINDS = {"author", "title", "subject"};

    public SearchRequest(Database database) {
        super(database, "Search Request");
    }

    @Override
    protected void answer(Request request, Page page) throws SQLException, Refused {
        database().<Void>read(connection -> {
            Promotion.write(connection, database(), request, page);
            return null;
        });
        page.openForm("search_result", "get").choice("Search by", "TYPE", KINDS).field("for", "SEARCH", "").closeForm("Search");
    }
}
