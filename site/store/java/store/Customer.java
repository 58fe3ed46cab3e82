package store;

import java.math.BigDecimal;
import java.sql.Connection;
import java.sql.Date;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.Locale;
import java.util.concurrent.ThreadLocalRandom;

/** A customer with his address. */
public record Customer(int id, String userName, String password, String firstName, String lastName, String phone, String email,
        BigDecimal discount, Address address) {

    /** An address with the name of its country. */
    public record Address(int id, String street1, String street2, String city, String state, String zip, int countryId,
            String country) {

        void write(Page page) {
            page.raw("<p>").say(street1).raw("<br>").say(street2).raw("<br>").say(city).raw(", ").say(state).raw(" ").say(zip)
                .raw("<br>").say(country).raw("</p>\n");
        }
    }

    private static final String COLUMNS = "select c_id, c_uname, c_passwd, c_fname, c_lname, c_phone, c_email, c_discount,"
        + " addr_id, addr_street1, addr_street2, addr_city, addr_state, addr_zip, addr_co_id, co_name"
        + " from customer join address on c_addr_id = addr_id join country on addr_co_id = co_id where ";

    /** A customer who has given his name and password. */
    public static Customer known(Connection connection, String userName, String password) throws SQLException, Refused {
        Customer customer = find(connection, COLUMNS + "c_uname = ?", userName);
        if (!customer.password().equals(password)) {
            throw new Refused("wrong password");
        }
        return customer;
    }

    public static Customer byId(Connection connection, int id) throws SQLException, Refused {
        return find(connection, COLUMNS + "c_id = ?", id);
    }

    private static Customer find(Connection connection, String query, Object key) throws SQLException, Refused {
        try (PreparedStatement statement = Database.prepare(connection, query, key);
                ResultSet row = statement.executeQuery()) {
            if (!row.next()) {
                throw new Refused("no such customer");
            }
            Address address = new Address(row.getInt(9), row.getString(10), row.getString(11), row.getString(12),
                row.getString(13), row.getString(14), row.getInt(15), row.getString(16));
            return new Customer(row.getInt(1), row.getString(2), row.getString(3), row.getString(4), row.getString(5),
                row.getString(6), row.getString(7), row.getBigDecimal(8), address);
        }
    }

    /** His session begins anew, and lasts two hours. */
    public static void logIn(Connection connection, int id) throws SQLException {
        Database.run(connection, "update customer set c_login = current_timestamp,"
            + " c_expiration = current_timestamp + interval '2' hour where c_id = ?", id);
    }

    /** Registers somebody new from what the form says. His name and password follow from his number, as everybody's do. */
    public static Customer register(Connection connection, Request request) throws SQLException, Refused {
        int address = addressOf(connection, request);
        int discount = ThreadLocalRandom.current().nextInt(51);
        // The name is unique and follows from a number that the row does not have before it is there.
        String provisional = "new " + Long.toString(ThreadLocalRandom.current().nextLong(Long.MAX_VALUE), 36);
        int id = Database.insert(connection, "insert into customer (c_uname, c_passwd, c_fname, c_lname, c_addr_id, c_phone,"
            + " c_email, c_since, c_last_visit, c_login, c_expiration, c_discount, c_balance, c_ytd_pmt, c_birthdate, c_data)"
            + " values (?, '', ?, ?, ?, ?, ?, current_date, current_date, current_timestamp, current_timestamp + interval '2' hour, ?, 0, 0, ?, ?)",
            provisional, request.needed("FNAME", 17), request.needed("LNAME", 17), address, request.needed("PHONE", 18),
            request.needed("EMAIL", 50), discount, birthday(request.needed("BIRTHDATE", 10)), request.text("DATA", 500));
        String name = Words.digSyl(id, 0);
        Database.run(connection, "update customer set c_uname = ?, c_passwd = ? where c_id = ?", name,
            name.toLowerCase(Locale.ROOT), id);
        return byId(connection, id);
    }

    private static Date birthday(String text) throws Refused {
        return Request.date(text, "BIRTHDATE is no date");
    }

    /** The address that a form names: the one that is there already, or a new one. */
    public static int addressOf(Connection connection, Request request) throws SQLException, Refused {
        String street1 = request.needed("STREET_1", 40);
        String street2 = request.text("STREET_2", 40);
        String city = request.needed("CITY", 30);
        String state = request.text("STATE", 20);
        String zip = request.needed("ZIP", 10);
        int country;
        try (PreparedStatement statement = Database.prepare(connection, "select co_id from country where co_name = ?",
                request.needed("COUNTRY", 50));
                ResultSet row = statement.executeQuery()) {
            if (!row.next()) {
                throw new Refused("no such country");
            }
            country = row.getInt(1);
        }
        String query = "select addr_id from address where addr_zip = ? and addr_street1 = ? and addr_street2 = ? and addr_city = ?"
            + " and addr_state = ? and addr_co_id = ? limit 1";
        try (PreparedStatement statement = Database.prepare(connection, query, zip, street1, street2, city, state, country);
                ResultSet row = statement.executeQuery()) {
            if (row.next()) {
                return row.getInt(1);
            }
        }
        return Database.insert(connection, "insert into address (addr_street1, addr_street2, addr_city, addr_state, addr_zip,"
            + " addr_co_id) values (?, ?, ?, ?, ?, ?)", street1, street2, city, state, zip, country);
    }

    /** Name and address, as the secure pages show them. */
    public void write(Page page) {
        page.raw("<section id=\"customer\"><p>").say(firstName).raw(" ").say(lastName).raw(" (").say(userName).raw(")<br>")
            .say(email).raw("<br>").say(phone).raw("</p>\n");
        address.write(page);
        page.raw("</section>\n");
    }
}
