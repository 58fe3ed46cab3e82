"""What must hold beside speed: pages are the same byte for byte, and no order is lost or doubled when a tier is killed."""

import json
import time

from .hosts import Trouble, shell
from .load import Emulator

# Fetched by a client that may run under Beeline. Prints a digest of each page.
FETCH = """
import hashlib, json, ssl, sys, urllib.request
plain, secure, authority = sys.argv[1:4]
context = ssl.create_default_context(cafile=authority)
found = {}
for address in json.load(sys.stdin):
    base = "https://" + secure if address.startswith("!") else "http://" + plain
    path, _, form = address.lstrip("!").partition(" ")
    request = urllib.request.Request(base + path, data=form.encode() if form else None)
    with urllib.request.urlopen(request, timeout=60, context=context) as answer:
        body = answer.read()
        found[address] = [answer.status, answer.headers["Content-Type"], len(body), hashlib.sha256(body).hexdigest()]
print(json.dumps(found))
"""


def addresses(items):
    """Pages that do not depend on chance or on the time (PROMO fixes the offers), pictures, secure pages."""
    pages = ["/store/home?C_ID=7&PROMO=3", "/store/home?PROMO=9", "/store/search_request?PROMO=5"]
    pages += [f"/store/new_products?SUBJECT={subject}&PROMO=1" for subject in ("ARTS", "NON-FICTION", "TRAVEL")]
    pages += [f"/store/best_sellers?SUBJECT={subject}&PROMO=2" for subject in ("ARTS", "SCIENCE-FICTION", "YOUTH")]
    pages += ["/store/search_result?TYPE=subject&SEARCH=HISTORY&PROMO=4",
              "/store/search_result?TYPE=title&SEARCH=BABABABA&PROMO=4", "/store/search_result?TYPE=author&SEARCH=BABA&PROMO=4"]
    pages += [f"/store/product_detail?I_ID={item}" for item in range(1, items, items // 20)]
    pages += [f"/store/admin_request?I_ID={item}" for item in (1, items // 2, items)]
    pages += ["!/store/customer_registration?SHOPPING_ID=1", "!/store/order_inquiry?C_ID=10",
              "!/store/order_display UNAME=OGBABA&PASSWD=ogbaba", "!/store/order_display UNAME=RESE&PASSWD=rese"]
    pages += ["/static/store.css", "/static/logo.png"]
    for item in range(1, 101):
        pages += [f"/images/img{item % 100}/image_{item}.png", f"/images/img{item % 100}/thumb_{item}.png"]
    return pages


def same_bytes(columns, store, beeline):
    """Fetches all pages over each column. `columns`: name -> (stack, whether the client is on Beeline). Returns how many there are."""
    wanted = addresses(store.items)
    found = {}
    for name, (stack, accelerated) in columns.items():
        command = [beeline, "run", "-q", "--"] if accelerated else []
        command += ["python3", "-c", FETCH, stack.plain, stack.secure, store.certificate / "crt.pem"]
        found[name] = json.loads(shell(*stack.world.hosts["clients"].inside(command), input=json.dumps(wanted)))
    first, *others = found
    for name in others:
        for address in wanted:
            if found[name][address] != found[first][address]:
                raise Trouble(f"{address} is not the same over {first} and {name}: {found[first][address]}, {found[name][address]}")
    return {"pages": len(wanted), "bytes": sum(page[2] for page in found[first].values()), "columns": list(found)}


def orders(stack, journal):
    """Holds the orders that browsers saw against the database. Returns counts; `lost`, `doubled` and `torn` have to be 0."""
    with open(journal) as lines:
        attempts = [json.loads(line) for line in lines]
    rows = {}
    doubled = 0
    for card, order, lines, total in stack.database.sql(
            "select cx_num, o_id, (select count(*) from order_line where ol_o_id = o_id),"
            " case when o_total = cx_xact_amt then 1 else 0 end"
            f" from cc_xacts left join orders on o_id = cx_o_id where cx_o_id > {stack.first_order}"):
        doubled += card in rows
        rows[card] = (order, lines, total)
    lost = wrong = 0
    unknown = {"kept": 0, "gone": 0}
    for attempt in attempts:
        row = rows.get(attempt["card"])
        if attempt["order"] is None:
            unknown["kept" if row else "gone"] += 1
        elif row is None:
            lost += 1
        elif row[0] != str(attempt["order"]):
            wrong += 1
    known = {attempt["card"] for attempt in attempts}
    torn = sum(order == "NULL" or lines == "0" or total != "1" for order, lines, total in rows.values())
    carts = int(stack.database.sql("select count(*) from orders where not exists (select * from cc_xacts where cx_o_id = o_id)"
                                   f" and o_id > {stack.first_order}")[0][0])
    return {"sent": len(attempts), "confirmed": sum(attempt["order"] is not None for attempt in attempts), "lost": lost,
            "doubled": doubled, "another_number": wrong, "torn": torn + carts, "of_nobody": len(set(rows) - known),
            "unanswered_but_kept": unknown["kept"], "unanswered_and_gone": unknown["gone"]}


def kill_tier(stack, tier, store, beeline, accelerated, directory, runs, seed, measure=12.0):
    """Kills a tier in the middle of a run, starts it again at once, and looks when the site is itself again."""
    journal = directory / f"orders-{stack.name}-{tier.name}.json"
    stack.first_order = int(stack.database.sql("select max(o_id) from orders")[0][0])
    emulator = Emulator(stack, store, beeline, accelerated, "ordering", seed, browsers=50, think=0.01, ramp_up=1.0, measure=measure,
                        ramp_down=0.5, journal=journal)
    runs.append(emulator)
    try:
        time.sleep(4.0)
        killed = emulator.elapsed()
        tier.kill()
        tier.start()
        tier.wait_ready(60)
        back = emulator.elapsed()
        report = emulator.finish()
    finally:
        emulator.stop()
        runs.remove(emulator)
    before = report["wips_each_second"][1:int(killed)]
    usual = sorted(before)[len(before) // 2]
    recovered = _recovery(report, killed, usual)
    result = {"tier": tier.name, "killed_s": round(killed, 2), "up_again_after_s": round(back - killed, 2),
              "address_in_use": tier.log_of_errors().count("Address already in use"), "site_recovered_after_s": recovered, "usual_wips": usual, "errors": report["errors_all"],
              "complaints": report["complaints"], "wips": report["wips_each_second"], "errors_over_time": report["errors_each_second"],
              "orders": orders(stack, journal)}
    result["good"] = recovered is not None and not any(
        result["orders"][what] for what in ("lost", "doubled", "another_number", "torn", "of_nobody"))
    return result


def _recovery(report, killed, usual):
    """Seconds from the kill to the first second from which on no error comes and at least half as much is done as before, on the
    average of what is left. None if that is never."""
    wips, errors = report["wips_each_second"], report["errors_each_second"]
    end = len(wips) - 2
    for second in range(int(killed) + 1, end):
        rest = wips[second:end]
        if not any(errors[second:end]) and sum(rest) / len(rest) >= usual / 2:
            return round(second - killed, 2)
    return None
