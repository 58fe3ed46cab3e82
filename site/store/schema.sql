-- The ten tables of TPC-W. Sizes of columns are the specification's (clause 1.2); numbers are made by the database where
-- the store makes new rows.
create table country (
    co_id int not null primary key,
    co_name varchar(50) not null,
    co_exchange double not null,
    co_currency varchar(18) not null
) engine = InnoDB;

create table author (
    a_id int not null primary key,
    a_fname varchar(20) not null,
    a_lname varchar(20) not null,
    a_mname varchar(20) not null,
    a_dob date not null,
    a_bio varchar(500) not null
) engine = InnoDB;

create table address (
    addr_id int not null auto_increment primary key,
    addr_street1 varchar(40) not null,
    addr_street2 varchar(40) not null,
    addr_city varchar(30) not null,
    addr_state varchar(20) not null,
    addr_zip varchar(10) not null,
    addr_co_id int not null
) engine = InnoDB;

create table customer (
    c_id int not null auto_increment primary key,
    c_uname varchar(20) not null,
    c_passwd varchar(20) not null,
    c_fname varchar(17) not null,
    c_lname varchar(17) not null,
    c_addr_id int not null,
    c_phone varchar(18) not null,
    c_email varchar(50) not null,
    c_since date not null,
    c_last_visit date not null,
    c_login datetime not null,
    c_expiration datetime not null,
    c_discount decimal(5, 2) not null,
    c_balance decimal(15, 2) not null,
    c_ytd_pmt decimal(15, 2) not null,
    c_birthdate date not null,
    c_data varchar(500) not null
) engine = InnoDB;

create table item (
    i_id int not null primary key,
    i_title varchar(60) not null,
    i_a_id int not null,
    i_pub_date date not null,
    i_publisher varchar(60) not null,
    i_subject varchar(60) not null,
    i_desc varchar(500) not null,
    i_related1 int not null,
    i_related2 int not null,
    i_related3 int not null,
    i_related4 int not null,
    i_related5 int not null,
    i_thumbnail varchar(60) not null,
    i_image varchar(60) not null,
    i_srp decimal(15, 2) not null,
    i_cost decimal(15, 2) not null,
    i_avail date not null,
    i_stock int not null,
    i_isbn char(13) not null,
    i_page int not null,
    i_backing varchar(15) not null,
    i_dimensions varchar(25) not null
) engine = InnoDB;

create table orders (
    o_id int not null auto_increment primary key,
    o_c_id int not null,
    o_date datetime not null,
    o_sub_total decimal(15, 2) not null,
    o_tax decimal(15, 2) not null,
    o_total decimal(15, 2) not null,
    o_ship_type varchar(10) not null,
    o_ship_date datetime not null,
    o_bill_addr_id int not null,
    o_ship_addr_id int not null,
    o_status varchar(15) not null
) engine = InnoDB;

create table order_line (
    ol_o_id int not null,
    ol_id int not null,
    ol_i_id int not null,
    ol_qty int not null,
    ol_discount decimal(5, 2) not null,
    ol_comments varchar(100) not null,
    primary key (ol_o_id, ol_id)
) engine = InnoDB;

create table cc_xacts (
    cx_o_id int not null primary key,
    cx_type varchar(10) not null,
    cx_num varchar(16) not null,
    cx_name varchar(31) not null,
    cx_expiry date not null,
    cx_auth_id char(15) not null,
    cx_xact_amt decimal(15, 2) not null,
    cx_xact_date datetime not null,
    cx_co_id int not null
) engine = InnoDB;

create table shopping_cart (
    sc_id int not null auto_increment primary key,
    sc_time datetime not null
) engine = InnoDB;

create table shopping_cart_line (
    scl_sc_id int not null,
    scl_i_id int not null,
    scl_qty int not null,
    primary key (scl_sc_id, scl_i_id)
) engine = InnoDB;
