package store;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.sql.SQLException;
import javax.servlet.http.HttpServlet;
import javax.servlet.http.HttpServletRequest;
import javax.servlet.http.HttpServletResponse;

/** One of the fourteen web interactions. A page is made whole before its first byte is sent, so an error is never half a page. */
public abstract class Interaction extends HttpServlet {
    private static final long serialVersionUID = 1;

    private final transient Database database;
    private final String title;

    protected Interaction(Database database, String title) {
        this.database = database;
        this.title = title;
    }

    protected final Database database() {
        return database;
    }

    /** Writes the page's body. */
    protected abstract void answer(Request request, Page page) throws SQLException, Refused;

    @Override
    protected final void service(HttpServletRequest from, HttpServletResponse to) throws IOException {
        Request request = new Request(from);
        int status = HttpServletResponse.SC_OK;
        byte[] bytes;
        try {
            Page page = new Page(title, request.customer(), request.cart());
            answer(request, page);
            bytes = page.finish();
        } catch (Refused error) {
            status = HttpServletResponse.SC_BAD_REQUEST;
            bytes = complaint(error.getMessage());
        } catch (SQLException error) {
            status = HttpServletResponse.SC_INTERNAL_SERVER_ERROR;
            bytes = complaint(error.toString());
            System.err.println(title + ": " + error);
        }
        to.setStatus(status);
        to.setContentType("text/html; charset=iso-8859-1");
        // Pages are made for one customer at one moment.
        to.setHeader("Cache-Control", "no-store");
        to.setContentLength(bytes.length);
        to.getOutputStream().write(bytes);
    }

    private byte[] complaint(String text) {
        return ("<!DOCTYPE html><html><head><title>Error</title></head><body><p>" + Page.escape(title + ": " + text)
            + "</p></body></html>\n").getBytes(StandardCharsets.ISO_8859_1);
    }
}
