"""The command line: a command reads its arguments, calls one method, and prints.

    app       the command `everhold`: its groups, its errors, its exit codes
    context   the open runtime of a command, which session a name means, who is at the keyboard
    options   the options that commands share
    output    how things are printed: tables, ages, statuses, JSON
    terminal  asking a person, and moving a session until it ends or waits

The other modules hold the commands; `app.GROUPS` says which. Heavy modules are imported inside the
commands, so that `everhold --help` is fast.
"""
