"""The web console and the REST door, in a process of their own, clients like any other.

app, process    the application, and its process          pages/          a file a page
rest/           the REST door                             security/       connections, origins, logins
sessions        logged-in users                           layout          frame of every page
widgets/        pieces of pages                           dead_letters/   by pages and filter
lists, downloads, number_format   shared by pages
search_turns    searches by turns, of pages and of REST
"""
