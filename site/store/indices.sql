-- Made after the rows are there, which is faster.
create unique index country_name on country (co_name);
create unique index customer_uname on customer (c_uname);
create index address_zip on address (addr_zip);
create index author_lname on author (a_lname);
create index item_author on item (i_a_id);
create index item_title on item (i_title);
create index item_subject_date on item (i_subject, i_pub_date desc, i_title);
create index orders_customer on orders (o_c_id, o_id);
-- Best sellers are found from their subject's items, without reading orders.
create index order_line_sold on order_line (ol_i_id, ol_o_id, ol_qty);
