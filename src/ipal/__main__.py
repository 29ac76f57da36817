from ipal.cli import main

main()
