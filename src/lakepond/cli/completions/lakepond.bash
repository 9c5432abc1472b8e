_lakepond() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command= word words=
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "$command $word" in
      " plan") command="plan";;
      " doctor") command="doctor";;
      " status") command="status";;
      " watch") command="watch";;
      " ls") command="ls";;
      " show") command="show";;
      " view") command="view";;
      " report") command="report";;
      " verify") command="verify";;
      " repair") command="repair";;
      " compact") command="compact";;
      " push") command="push";;
      " pull") command="pull";;
      " gc") command="gc";;
      " import") command="import";;
      " export") command="export";;
      " train") command="train";;
      " evaluate") command="evaluate";;
      " compare") command="compare";;
      " play") command="play";;
      " collect") command="collect";;
      " completion") command="completion";;
      " data") command="data";;
      "train erl") command="train erl";;
      "train single") command="train single";;
      "train mixture") command="train mixture";;
      "train live") command="train live";;
      "data fetch") command="data fetch";;
      "data synthetic") command="data synthetic";;
      "data show") command="data show";;
      "data check") command="data check";;
    esac
  done
  case "$command $prev" in
    "plan --preset") words="eigen2 gpu gravitar";;
    "plan --rows") words="first last whole";;
    "plan --store") words="lakepond gzip plain";;
    "import --form") words="parquet arrow npz minari lerobot pickle";;
    "export --form") words="parquet arrow npz minari lerobot pickle";;
    "export --next-obs") words="yes no";;
    "export --compress") words="yes no";;
    "train erl --preset") words="demo eigen2 gpu";;
    "train erl --log") words="tensorboard wandb";;
    "train erl --dtype") words="float32 bfloat16";;
    "train erl --at-floor") words="warn stop_saving stop";;
    "train erl --credit") words="entry exit";;
    "train erl --evaluate") words="validation nothing";;
    "train single --preset") words="minatar published atari tiny";;
    "train single --log") words="tensorboard wandb";;
    "train single --suite") words="minatar atari gymnasium gymnax module";;
    "train single --network") words="mlp cnn nature";;
    "train single --dtype") words="float32 bfloat16";;
    "train single --epsilon-kind") words="linear exponential constant";;
    "train single --evaluation-greedy") words="True False";;
    "train single --recompute-targets") words="True False";;
    "train mixture --preset") words="minatar published atari tiny";;
    "train mixture --log") words="tensorboard wandb";;
    "train mixture --suite") words="minatar atari gymnasium gymnax module";;
    "train mixture --network") words="mlp cnn nature";;
    "train mixture --dtype") words="float32 bfloat16";;
    "train mixture --epsilon-kind") words="linear exponential constant";;
    "train mixture --epsilon-reset") words="keep";;
    "train mixture --evaluation-greedy") words="True False";;
    "train mixture --share") words="True False";;
    "train mixture --clone-optimiser") words="fresh kept cloned";;
    "train mixture --dueling") words="True False";;
    "train mixture --big-double") words="True False";;
    "train mixture --big-start") words="best fresh last";;
    "train live --preset") words="minatar published atari tiny";;
    "train live --log") words="tensorboard wandb";;
    "train live --suite") words="minatar atari gymnasium gymnax module";;
    "train live --network") words="mlp cnn nature";;
    "train live --dtype") words="float32 bfloat16";;
    "train live --epsilon-kind") words="linear exponential constant";;
    "train live --evaluation-greedy") words="True False";;
    "train live --lake") words="True False";;
    "train live --dueling") words="True False";;
    "train live --big-double") words="True False";;
    "train live --big-learner") words="dqn pqn";;
    "compare --preset") words="minatar tiny";;
    "compare --log") words="tensorboard wandb";;
    "compare --network") words="mlp cnn nature";;
    "compare --suite") words="minatar atari gymnasium gymnax module";;
    "completion completion") words="bash zsh fish";;
    "data fetch fetch") words="pse sp500 power";;
    *)
      case "$command" in
        "") words="plan doctor status watch ls show view report verify repair compact push pull gc import export train evaluate compare play collect completion data --debug --help --version";;
        "train") words="erl single mixture live";;
        "data") words="fetch synthetic show check";;
        "plan") words="--preset --obs --action --env --play --from --per-generation --generations --capacity --rows --pool --population --agent-size --upload-every --store --path --disk --ram --json --help";;
        "doctor") words="--path --cloud --warm-up --json --help";;
        "status") words="--json --help";;
        "watch") words="--every --stay --json --help";;
        "ls") words="--limit --json --help";;
        "show") words="--commit --writer --json --help";;
        "view") words="--port --host --allow-host --open --help";;
        "report") words="--out --figures --json --help";;
        "verify") words="--commit --writer --all --json --help";;
        "repair") words="--json --help";;
        "compact") words="--keep-last --keep-every --json --help";;
        "push") words="--timeout --json --help";;
        "pull") words="--commit --lazy --json --help";;
        "gc") words="--keep-last --keep-every --snapshots --older-than --lake --delete --json --help";;
        "import") words="--form --json --help";;
        "export") words="--form --commit --next-obs --compress --json --help";;
        "train erl") words="--preset --out --resume --resume-from --start-over --log --json --generations --seed --panel --days --instruments --capacity --gradient-steps --batch-size --min-free --push-to --signal --market-seed --validation --holdout --elites --children --mutants --tournament --blend-low --blend-high --mutation-rate --mutation-std --mutation-std-max --patience --inject-every --episodes --noise --fitness-episodes --validation-slices --learn-from --critics --gamma --tau --actor-rate --critic-rate --reward-scale --width --dtype --together --keep-checkpoints --keep-every --warn-free --at-floor --push-every --context --trading-days --settlement-days --max-holding --threshold --target-low --target-high --cost --slippage --inaction-penalty --zero-trade-penalty --delisted-after --delisting-loss --credit --ray --workers --gpus-per-worker --cloud --evaluate --help";;
        "train single") words="--preset --out --resume --resume-from --start-over --log --json --game --suite --frame-stack --env-steps --evaluate-every --seed --network --hidden --dtype --envs --learning-rate --rollout --epochs --minibatches --gamma --lam --max-gradient --epsilon-kind --epsilon-start --epsilon-end --epsilon-share --evaluation-episodes --evaluation-epsilon --evaluation-greedy --evaluation-steps --recompute-targets --replay-share --replay-pond --replay-newest --replay-rewarded --checkpoint-every --keep-every --max-steps --keep-last --min-free --push-to --push-every --seeds --help";;
        "train mixture") words="--preset --out --resume --resume-from --start-over --log --json --game --suite --frame-stack --env-steps --reset-every --evaluate-every --seed --network --hidden --dtype --agents --envs --learning-rate --big-replay-ratio --rollout --epochs --minibatches --gamma --lam --max-gradient --epsilon-kind --epsilon-start --epsilon-end --epsilon-share --epsilon-reset --epsilon-offsets --evaluation-episodes --evaluation-epsilon --evaluation-greedy --evaluation-steps --checkpoint-every --keep-every --max-steps --keep-last --min-free --push-to --push-every --share --pond --clone-optimiser --dueling --big-pond --big-batch --big-learning-rate --big-target-every --big-double --big-start --big-shrink --big-new-layers --big-n-step --big-gamma --big-rate-end --big-distill --big-last --ray --gpus-per-agent --help";;
        "train live") words="--preset --out --resume --resume-from --start-over --log --json --game --suite --frame-stack --env-steps --evaluate-every --seed --network --hidden --dtype --agents --envs --learning-rate --big-replay-ratio --rollout --epochs --minibatches --gamma --lam --max-gradient --epsilon-kind --epsilon-start --epsilon-end --epsilon-share --evaluation-episodes --evaluation-epsilon --evaluation-greedy --evaluation-steps --checkpoint-every --keep-every --lake --max-steps --keep-last --min-free --push-to --push-every --dueling --big-envs --big-pond --big-batch --big-learning-rate --big-target-every --big-double --big-n-step --big-alpha --big-epsilon-start --big-learner --big-replay-share --clone-every --help";;
        "evaluate") words="--holdout --checkpoint --random-agents --sweep --json --help";;
        "compare") words="--folder --preset --report --only-report --baseline --ray --workers --gpus-per-worker --cloud --log --json --games --arms --seeds --first-seed --env-steps --reset-parts --evaluations --evaluation-episodes --network --hidden --learning-rate --rates --big-replay-ratio --suite --help";;
        "play") words="--video --checkpoint --seed --epsilon --trust-module --json --help";;
        "collect") words="--writer --lake --env --policy --envs --weights --folder --every --steps --json --help";;
        "completion") words="--help";;
        "data fetch") words="--out --wheel --json --help";;
        "data synthetic") words="--days --instruments --seed --signal --out --json --help";;
        "data show") words="--json --help";;
        "data check") words="--context --trading-days --json --help";;
      esac
      [[ $words == --* && $cur != -* ]] && words=;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -o bashdefault -o default -F _lakepond lakepond
