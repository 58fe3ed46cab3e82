package store;

import java.sql.Date;
import javax.servlet.http.HttpServletRequest;

/** The parameters of a request, checked. */
public final class Request {
    private final HttpServletRequest from;

    Request(HttpServletRequest from) {
        this.from = from;
    }

    public boolean has(String name) {
        String value = from.getParameter(name);
        return value != null && !value.isEmpty();
    }

    /** A text, or an empty one. No column that is filled from a form is longer than its limit here. */
    public String text(String name, int limit) throws Refused {
        String value = from.getParameter(name);
        if (value == null) {
            return "";
        }
        if (value.length() > limit) {
            throw new Refused(name + " is too long");
        }
        return value;
    }

    /** A text that has to be there. */
    public String needed(String name, int limit) throws Refused {
        String value = text(name, limit);
        if (value.isEmpty()) {
            throw new Refused(name + " is missing");
        }
        return value;
    }

    /** A number that is not negative; -1 where there is none. */
    public int number(String name) throws Refused {
        String value = from.getParameter(name);
        if (value == null || value.isEmpty()) {
            return -1;
        }
        try {
            int number = Integer.parseInt(value);
            if (number >= 0) {
                return number;
            }
        } catch (NumberFormatException error) {
            // Told below.
        }
        throw new Refused(name + " is no number");
    }

    /** A number that has to be there. */
    public int neededNumber(String name) throws Refused {
        int number = number(name);
        if (number < 0) {
            throw new Refused(name + " is missing");
        }
        return number;
    }

    /** A day in the form of ISO 8601; what it is not is refused with this text. */
    public static Date date(String text, String otherwise) throws Refused {
        try {
            return Date.valueOf(text);
        } catch (IllegalArgumentException error) {
            throw new Refused(otherwise);
        }
    }

    /** The customer, as far as this session knows him; -1 otherwise. */
    public int customer() throws Refused {
        return number("C_ID");
    }

    /** The cart; -1 where there is none yet. */
    public int cart() throws Refused {
        return number("SHOPPING_ID");
    }
}
