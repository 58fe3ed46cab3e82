package store;

import java.nio.charset.StandardCharsets;

/** A page that is being written: head, body, the row of buttons at its end, and links that carry session and cart along. */
public final class Page {
    private final StringBuilder text = new StringBuilder(8192);
    private int customer;
    private int cart;

    Page(String title, int customer, int cart) {
        this.customer = customer;
        this.cart = cart;
        text.append("<!DOCTYPE html>\n<html><head><title>Bookstore: ").append(title)
            .append("</title><link rel=\"stylesheet\" href=\"/static/store.css\"></head>\n<body>\n<header>");
        image("/static/logo.png", "The bookstore");
        text.append("<h1>").append(title).append("</h1></header>\n");
    }

    /** From here on the page belongs to this customer, and links say so. */
    public void belongsTo(int newCustomer) {
        customer = newCustomer;
    }

    public void hasCart(int newCart) {
        cart = newCart;
    }

    public int customer() {
        return customer;
    }

    public int cart() {
        return cart;
    }

    /** Text that is already HTML. */
    public Page raw(String html) {
        text.append(html);
        return this;
    }

    public Page raw(long number) {
        text.append(number);
        return this;
    }

    /** Text of others. */
    public Page say(Object words) {
        text.append(escape(String.valueOf(words)));
        return this;
    }

    public Page image(String source, String words) {
        text.append("<img src=\"").append(escape(source)).append("\" alt=\"").append(escape(words)).append("\">");
        return this;
    }

    /** The address of an interaction, with the session. {@code parameters} starts with an ampersand or is empty. */
    public String address(String interaction, String parameters) {
        StringBuilder address = new StringBuilder("/store/").append(interaction);
        char mark = '?';
        if (customer >= 0) {
            address.append(mark).append("C_ID=").append(customer);
            mark = '&';
        }
        if (cart >= 0) {
            address.append(mark).append("SHOPPING_ID=").append(cart);
            mark = '&';
        }
        if (!parameters.isEmpty()) {
            address.append(mark).append(parameters, 1, parameters.length());
        }
        return address.toString();
    }

    public Page link(String interaction, String parameters, String words) {
        text.append("<a href=\"").append(escape(address(interaction, parameters))).append("\">").append(escape(words))
            .append("</a>");
        return this;
    }

    /** A link to an item, shown by its thumbnail. */
    public Page thumbnail(int item, String source) {
        text.append("<a href=\"").append(escape(address("product_detail", "&I_ID=" + item))).append("\">");
        image("/images/" + source, "Item " + item);
        text.append("</a>");
        return this;
    }

    public Page openForm(String interaction, String method) {
        text.append("<form action=\"/store/").append(interaction).append("\" method=\"").append(method).append("\">");
        if (customer >= 0) {
            hidden("C_ID", customer);
        }
        if (cart >= 0) {
            hidden("SHOPPING_ID", cart);
        }
        return this;
    }

    public Page hidden(String name, Object value) {
        text.append("<input type=\"hidden\" name=\"").append(name).append("\" value=\"").append(escape(String.valueOf(value)))
            .append("\">");
        return this;
    }

    public Page field(String words, String name, Object value) {
        text.append("<label>").append(words).append(" <input name=\"").append(name).append("\" value=\"")
            .append(escape(String.valueOf(value))).append("\"></label>\n");
        return this;
    }

    public Page choice(String words, String name, String[] values) {
        text.append("<label>").append(words).append(" <select name=\"").append(name).append("\">");
        for (String value : values) {
            text.append("<option>").append(value).append("</option>");
        }
        text.append("</select></label>\n");
        return this;
    }

    public Page closeForm(String words) {
        text.append("<button>").append(words).append("</button></form>\n");
        return this;
    }

    private void button(String interaction, String picture, String words) {
        text.append("<a href=\"").append(escape(address(interaction, ""))).append("\">");
        image("/static/" + picture + ".png", words);
        text.append("</a>");
    }

    byte[] finish() {
        text.append("<footer>");
        button("home", "home", "Home");
        button("shopping_cart", "cart", "Shopping cart");
        button("search_request", "search", "Search");
        button("order_inquiry", "order", "Order status");
        text.append("</footer>\n</body></html>\n");
        return text.toString().getBytes(StandardCharsets.ISO_8859_1);
    }

    public static String escape(String words) {
        StringBuilder safe = null;
        for (int index = 0; index < words.length(); index++) {
            String entity = switch (words.charAt(index)) {
                case '&' -> "&amp;";
                case '<' -> "&lt;";
                case '>' -> "&gt;";
                case '"' -> "&quot;";
                default -> null;
            };
            if (entity != null && safe == null) {
                safe = new StringBuilder(words.length() + 16).append(words, 0, index);
            }
            if (safe != null) {
                if (entity == null) {
                    safe.append(words.charAt(index));
                } else {
                    safe.append(entity);
                }
            }
        }
        return safe == null ? words : safe.toString();
    }
}
