"""Access: who may come in, and what each may do.

authentication   credentials in, a principal out          account_store   users, tokens and rules on file
authorization    the check of every request               rules           what a principal may do, pure
permissions      words of the table of requests           accounts        requests about users, tokens, rules
access_file, setup_secret   the first ways in             audit, audit_files   who did what
passwords, login_attempts, quota   limits of those who try, and of those who are in
"""
