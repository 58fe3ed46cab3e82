package store.pages;

import java.sql.SQLException;
import store.Database;
import store.Interaction;
import store.Page;
import store.Refused;
import store.Request;

/** Two forms: one for customers who are known, one for those who are not. */
public final class CustomerRegistration extends Interaction {
    private static final long serialVersionUID = 1;

    public CustomerRegistration(Database database) {
        super(database, "Customer Registration");
    }

    @Override
    protected void answer(Request request, Page page) throws SQLException, Refused {
        page.raw("<h2>Returning customers</h2>").openForm("buy_request", "post").hidden("RETURNING_FLAG", "Y")
            .field("Name", "UNAME", "").field("Password", "PASSWD", "").closeForm("Go on");
        page.raw("<h2>New customers</h2>").openForm("buy_request", "post").hidden("RETURNING_FLAG", "N")
            .field("First name", "FNAME", "").field("Last name", "LNAME", "").field("Street", "STREET_1", "")
            .field("Street", "STREET_2", "").field("City", "CITY", "").field("State", "STATE", "").field("Zip", "ZIP", "")
            .field("Country", "COUNTRY", "").field("Phone", "PHONE", "").field("E-mail", "EMAIL", "")
            .field("Birthdate", "BIRTHDATE", "").field("Special information", "DATA", "").closeForm("Go on");
    }
}
