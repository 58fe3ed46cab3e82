package store.data;

/** The ninety-two countries that the specification's population has. */
final class Countries {
    static final String[] NAMES = {
        "United States", "United Kingdom", "Canada", "Germany", "France", "Japan", "Netherlands", "Italy", "Switzerland",
        "Australia", "Algeria", "Argentina", "Armenia", "Austria", "Azerbaijan", "Bahamas", "Bahrain", "Bangla Desh", "Barbados",
        "Belarus", "Belgium", "Bermuda", "Bolivia", "Botswana", "Brazil", "Bulgaria", "Cayman Islands", "Chad", "Chile", "China",
        "Christmas Island", "Colombia", "Croatia", "Cuba", "Cyprus", "Czech Republic", "Denmark", "Dominican Republic",
        "Eastern Caribbean", "Ecuador", "Egypt", "El Salvador", "Estonia", "Ethiopia", "Falkland Island", "Faroe Island", "Fiji",
        "Finland", "Gabon", "Gibraltar", "Greece", "Guam", "Hong Kong", "Hungary", "Iceland", "India", "Indonesia", "Iran", "Iraq",
        "Ireland", "Israel", "Jamaica", "Jordan", "Kazakhstan", "Kuwait", "Lebanon", "Luxembourg", "Malaysia", "Mexico",
        "Mauritius", "New Zealand", "Norway", "Pakistan", "Philippines", "Poland", "Portugal", "Romania", "Russia",
        "Saudi Arabia", "Singapore", "Slovakia", "South Africa", "South Korea", "Spain", "Sudan", "Sweden", "Taiwan", "Thailand",
        "Trinidad", "Turkey", "Venezuela", "Zambia",
    };

    private Countries() {}
}
