from gpuslice.cli.demo.command import main

if __name__ == "__main__":
    main()
