"""The command line. A command reads its arguments, calls one method, and prints.

    app       the command `everhold`: its groups, its errors, its exit codes
    context   what commands share: options, the open runtime, which session is meant
    output    how things are printed: tables, ages, JSON
    prompt    asking a person at the terminal

Everything heavy is imported inside the commands, so that `everhold --help` answers at once.
"""
