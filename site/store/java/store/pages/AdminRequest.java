package store.pages;

import java.sql.ResultSet;
import java.sql.SQLException;
import store.Database;
import store.Page;

/** The form with which a clerk changes an item's price and pictures. */
public final class AdminRequest extends ItemPage {
    private static final long serialVersionUID = 1;

    public AdminRequest(Database database) {
        super(database, "Admin Request", "i_cost, i_image, i_thumbnail");
    }

    @Override
    void about(int item, ResultSet row, Page page) throws SQLException {
        String price = row.getString(COMMON_COLUMNS + 1);
        String picture = row.getString(COMMON_COLUMNS + 2);
        String thumbnail = row.getString(COMMON_COLUMNS + 3);
        page.image("/images/" + picture, "Picture").image("/images/" + thumbnail, "Thumbnail")
            .openForm("admin_confirm", "post").hidden("I_ID", item)
            .field("New price, until now " + price, "I_NEW_COST", "")
            .field("New picture", "I_NEW_IMAGE", picture)
            .field("New thumbnail", "I_NEW_THUMBNAIL", thumbnail).closeForm("Change");
    }
}
