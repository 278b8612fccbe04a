#!/bin/bash

#SBATCH -p { partition }              
#SBATCH -A { account }
#SBATCH -J { jobname }
#SBATCH -N 1                      # 64x8x4
#SBATCH -t 0-4:00:00             # wall time
#SBATCH --ntasks-per-node=1       # tasks per node
#SBATCH --exclusive                # exclusive node access
#SBATCH --mem=0                    # all mem avail
#SBATCH --mail-type=FAIL           # only send email on failure
#SBATCH --overcommit               # needed for pytorch

OPENRLHF_PATH=<OPENRLHF_ROOT_PATH>
IMAGE_NAME="registry.example.com/pytorch:24.07-py3"
MOUNT="$OPENRLHF_PATH:/openrlhf,$HOME/.cache:/root/.cache"
GPUS_PER_NODE=8
JOBLOG="$(pwd)/logs/$training_script-$SLURM_JOB_ID.log"

readonly training_commands=" \
    openrlhf.cli.train_dpo \
    --save_path ./checkpoint/llama3-8b-dpo \
    --save_steps -1 \
    --logging_steps 1 \
    --eval_steps -1 \
    --train_batch_size 256 \
    --micro_train_batch_size 1 \
    --pretrain OpenRLHF/Llama-3-8b-sft-mixture \
    --bf16 \
    --max_epochs 1 \
    --max_len 8192 \
    --zero_stage 3 \
    --learning_rate 9e-6 \
    --beta 0.1 \
    --dataset OpenRLHF/preference_dataset_mixture2_and_safe_pku \
    --apply_chat_template \
    --chosen_key chosen \
    --rejected_key rejected \
    --packing_samples \
    --flash_attn \
    --gradient_checkpointing \
    --use_wandb {wandb_token}"

echo $training_commands &>> ${JOBLOG}

# Job start
echo "$(date '+%Y-%m-%d %H:%M:%S') Job ${SLURM_JOB_ID} started ..." &>> ${JOBLOG}

# master addr and port
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
export MASTER_PORT=9901

srun --container-image="$IMAGE_NAME" --container-mounts="$MOUNT" bash -c \
    "cd /openrlhf; pip install . ; torchrun \
    torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $SLURM_NNODES --node_rank $SLURM_PROCID \
    --master_addr $MASTER_ADDR --master_port $MASTER_PORT -m ${training_commands}" &>> ${JOBLOG}

echo "$(date '+%Y-%m-%d %H:%M:%S') Job ${SLURM_JOB_ID} stopped ..." &>> ${JOBLOG}
