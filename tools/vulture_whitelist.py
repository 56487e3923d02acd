"""Names that look unused to vulture and are not: something outside our code calls or reads them.

One line per name, with the reason beside it. This file is read, never run.
"""

version  # an argument of the command line, read by its callback
__getattr__  # of the package: called by Python for a public name that is not imported yet
xOpen  # called by SQLite through apsw
_ledger_agrees  # a fixture that pytest runs by itself
do_GET  # called by http.server, as are the next three
do_POST
handle_error
log_message
client_address  # its argument
holdfast_kit  # a fixture that users' tests ask for
capture_signals  # called by uvicorn
connection_made  # called by asyncio, as are the next two
data_received
connection_lost
capture_envelope  # called by Sentry
deny_approval  # for the surfaces of policies, as are the next four
list_approvals
describe_approval
policy_books
policy_events
_fsync  # called by name in the model of a power cut, as are the next two
_mkdir
_rename

# Called by html.parser.
_.handle_starttag
_.handle_endtag
