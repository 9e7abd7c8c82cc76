"""The pages that show the evidence of runs, live in a browser and as a report in one file.

A folder per feature, with what its page computes (``data``), draws (``figures``) and shows (``view``), as far as it needs them;
none imports another one.
Beside them the shared rooms, from the ground up; each imports those before it:

``words``     names, units and verdicts in words
``data``      what is known of a run: ``RunSource``, ``RunData``, and the kinds of data that several features show
``web``       access control, login, the server
``model``     blocks of a page, and the selection in its address
``charts``    colours, frame and heat maps of figures
(features)    runs overview ranks overlap delays timeline whatif hardware alerts compare lost_hours
``registry``  all pages: to add one, add a folder and a row
``store``     ``RunSource`` on disk: runs found, analysed beside the server, followed, cached
``live``      blocks as Dash components, kept up to date; ``report``: the same blocks as one HTML file
"""
