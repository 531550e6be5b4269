from benchmarks.applications.command import main

main()
