from gpuslice.cli.demo.command import main

main()
