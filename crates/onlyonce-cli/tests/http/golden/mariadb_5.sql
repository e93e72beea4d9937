/*M!999999\- enable the sandbox mode */ 

/*!40101 SET @OLD_CHARACTER_SET_CLIENT=@@CHARACTER_SET_CLIENT */;
/*!40101 SET @OLD_CHARACTER_SET_RESULTS=@@CHARACTER_SET_RESULTS */;
/*!40101 SET @OLD_COLLATION_CONNECTION=@@COLLATION_CONNECTION */;
/*!40101 SET NAMES utf8mb4 */;
/*!40103 SET @OLD_TIME_ZONE=@@TIME_ZONE */;
/*!40103 SET TIME_ZONE='+00:00' */;
/*!40014 SET @OLD_UNIQUE_CHECKS=@@UNIQUE_CHECKS, UNIQUE_CHECKS=0 */;
/*!40014 SET @OLD_FOREIGN_KEY_CHECKS=@@FOREIGN_KEY_CHECKS, FOREIGN_KEY_CHECKS=0 */;
/*!40101 SET @OLD_SQL_MODE=@@SQL_MODE, SQL_MODE='NO_AUTO_VALUE_ON_ZERO' */;
/*!40111 SET @OLD_SQL_NOTES=@@SQL_NOTES, SQL_NOTES=0 */;
DROP TABLE IF EXISTS `onlyonce_inbox`;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `onlyonce_inbox` (
  `consumer` varbinary(255) NOT NULL,
  `message_id` varbinary(1024) NOT NULL,
  `at` bigint(20) NOT NULL,
  `keep_until` bigint(20) NOT NULL,
  PRIMARY KEY (`consumer`,`message_id`),
  KEY `inbox_by_age` (`keep_until`)
) ENGINE=InnoDB DEFAULT CHARSET=latin1 COLLATE=latin1_swedish_ci ROW_FORMAT=DYNAMIC;
/*!40101 SET character_set_client = @saved_cs_client */;

LOCK TABLES `onlyonce_inbox` WRITE;
/*!40000 ALTER TABLE `onlyonce_inbox` DISABLE KEYS */;
/*!40000 ALTER TABLE `onlyonce_inbox` ENABLE KEYS */;
UNLOCK TABLES;
DROP TABLE IF EXISTS `onlyonce_journal`;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `onlyonce_journal` (
  `number` bigint(20) NOT NULL AUTO_INCREMENT,
  `at` bigint(20) NOT NULL,
  `attempt` int(11) NOT NULL,
  `id` binary(16) NOT NULL,
  `event` varbinary(64) NOT NULL,
  `from_state` varbinary(20) DEFAULT NULL,
  `to_state` varbinary(20) DEFAULT NULL,
  `actor` varbinary(20) NOT NULL,
  `detail` mediumblob DEFAULT NULL,
  PRIMARY KEY (`number`),
  KEY `journal_by_id` (`id`)
) ENGINE=InnoDB AUTO_INCREMENT=4 DEFAULT CHARSET=latin1 COLLATE=latin1_swedish_ci ROW_FORMAT=DYNAMIC;
/*!40101 SET character_set_client = @saved_cs_client */;

LOCK TABLES `onlyonce_journal` WRITE;
/*!40000 ALTER TABLE `onlyonce_journal` DISABLE KEYS */;
INSERT INTO `onlyonce_journal` VALUES
(1,1794970387664,1,0x16D96AB2B38DAB4F90D4EB2AF7F1E9BE,0x626563616D655F756E6B6E6F776E,0x696E5F70726F6772657373,0x756E6B6E6F776E,0x6578656375746F72,0x636F6E6E656374696F6E5F6C6F7374),
(2,1794970387664,1,0x16D96AB2B38DAB4F90D4EB2AF7F1E9BE,0x646561645F6C65747465726564,0x696E5F70726F6772657373,0x756E6B6E6F776E,0x7265636F6E63696C6572,0x6E6F626F64792061736B73207468652070726F76696465723A2073656520607265636F6E63696C6560),
(3,1794970387673,1,0x5D5BE578B49319CEF8012983E9510D25,0x72656C6561736564,0x696E5F70726F6772657373,0x6661696C65645F726574727961626C65,0x6578656375746F72,0x72656C65617365645F737461747573);
/*!40000 ALTER TABLE `onlyonce_journal` ENABLE KEYS */;
UNLOCK TABLES;
DROP TABLE IF EXISTS `onlyonce_keys`;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `onlyonce_keys` (
  `n` bigint(20) NOT NULL AUTO_INCREMENT,
  `id` binary(16) NOT NULL,
  `is_live` tinyint(4) DEFAULT NULL,
  `row_version` smallint(6) NOT NULL,
  `revision` bigint(20) NOT NULL,
  `attempt_id` binary(16) NOT NULL,
  `fence` int(11) NOT NULL,
  `generation` int(11) NOT NULL,
  `negatives` smallint(6) NOT NULL DEFAULT 0,
  `inconclusive` smallint(6) NOT NULL DEFAULT 0,
  `dead_letter` tinyint(4) NOT NULL DEFAULT 0,
  `response_status` smallint(6) DEFAULT NULL,
  `response_bytes` int(11) DEFAULT NULL,
  `created_at` bigint(20) DEFAULT NULL,
  `last_run_at` bigint(20) DEFAULT NULL,
  `completed_at` bigint(20) DEFAULT NULL,
  `expires_at` bigint(20) DEFAULT NULL,
  `lease_until` bigint(20) DEFAULT NULL,
  `unknown_since` bigint(20) DEFAULT NULL,
  `reconcile_after` bigint(20) DEFAULT NULL,
  `delete_at` bigint(20) DEFAULT NULL,
  `tombstone_ttl` bigint(20) NOT NULL,
  `fingerprint` binary(32) DEFAULT NULL,
  `recipe` binary(8) NOT NULL,
  `caller` binary(16) DEFAULT NULL,
  `state` varbinary(20) NOT NULL,
  `last_error` varbinary(64) DEFAULT NULL,
  `scope` blob NOT NULL,
  `key` blob NOT NULL,
  `route` tinyblob NOT NULL,
  `method` tinyblob NOT NULL,
  `path` mediumblob NOT NULL,
  `response_head` mediumblob DEFAULT NULL,
  `response_body` longblob DEFAULT NULL,
  `evidence` longblob DEFAULT NULL,
  `notes` blob DEFAULT NULL,
  `scope_hash` int(10) unsigned GENERATED ALWAYS AS (crc32(`scope`)) VIRTUAL,
  PRIMARY KEY (`n`),
  UNIQUE KEY `keys_by_id` (`id`),
  KEY `keys_that_live` (`is_live`),
  KEY `keys_by_scope` (`scope_hash`)
) ENGINE=InnoDB AUTO_INCREMENT=4 DEFAULT CHARSET=latin1 COLLATE=latin1_swedish_ci ROW_FORMAT=DYNAMIC;
/*!40101 SET character_set_client = @saved_cs_client */;

LOCK TABLES `onlyonce_keys` WRITE;
/*!40000 ALTER TABLE `onlyonce_keys` DISABLE KEYS */;
INSERT INTO `onlyonce_keys` VALUES
(1,0x2385162AE0E2A42262CC9D7B9048FCD1,NULL,1,139531567646574,0xE526831E8D9A63A9074FFEE73986476D,1,1,0,0,0,201,43,1794970387644,1794970387644,1794970387650,2110330387650,NULL,NULL,NULL,NULL,86400000,0xF2860738ACE29A944CDFE86EA11E5609C988D878B8BB6A46608691032ECAE9D8,0x1C7E0F6DEDEE5E17,0x4C8263537B210400E8ABF1650907EF7B,0x636F6D706C65746564,NULL,0x676C6F62616C,0x676F6C64656E2D636F6D706C65746564,0x72,0x504F5354,0x2F7061796D656E7473,NULL,0x0106019B01000095020004036C0000001A00000042617365485454502F302E3620507974686F6E2F332E31312E3710732F676F6C64656E7B22222D7D0B00AEE72D330B849BC7C91C2C61304B56391758D9D9062418E7828400F56088,NULL,0x0101,3892677507),
(2,0x16D96AB2B38DAB4F90D4EB2AF7F1E9BE,1,1,75389609308915,0xFE9A9B50CC17F4C53962C49102E1F2F2,1,1,0,0,1,NULL,NULL,1794970387658,1794970387658,NULL,NULL,NULL,1794970387664,NULL,NULL,86400000,0xF2860738ACE29A944CDFE86EA11E5609C988D878B8BB6A46608691032ECAE9D8,0x1C7E0F6DEDEE5E17,0x4C8263537B210400E8ABF1650907EF7B,0x756E6B6E6F776E,0x636F6E6E656374696F6E5F6C6F7374,0x676C6F62616C,0x676F6C64656E2D756E6B6E6F776E,0x72,0x504F5354,0x2F7061796D656E7473,NULL,NULL,NULL,0x0101,3892677507),
(3,0x5D5BE578B49319CEF8012983E9510D25,NULL,1,80149768665545,0x54AC31AAE00C13C0C65BC8E5527D79C8,1,1,0,0,0,NULL,NULL,1794970387669,1794970387669,NULL,2110330387673,NULL,NULL,NULL,NULL,86400000,0xF2860738ACE29A944CDFE86EA11E5609C988D878B8BB6A46608691032ECAE9D8,0x1C7E0F6DEDEE5E17,0x4C8263537B210400E8ABF1650907EF7B,0x6661696C65645F726574727961626C65,0x72656C65617365645F737461747573,0x676C6F62616C,0x676F6C64656E2D726574727961626C65,0x72,0x504F5354,0x2F7061796D656E7473,NULL,NULL,NULL,0x0101,3892677507);
/*!40000 ALTER TABLE `onlyonce_keys` ENABLE KEYS */;
UNLOCK TABLES;
DROP TABLE IF EXISTS `onlyonce_meta`;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `onlyonce_meta` (
  `name` varbinary(64) NOT NULL,
  `value` blob NOT NULL,
  PRIMARY KEY (`name`)
) ENGINE=InnoDB DEFAULT CHARSET=latin1 COLLATE=latin1_swedish_ci;
/*!40101 SET character_set_client = @saved_cs_client */;

LOCK TABLES `onlyonce_meta` WRITE;
/*!40000 ALTER TABLE `onlyonce_meta` DISABLE KEYS */;
INSERT INTO `onlyonce_meta` VALUES
(0x626C6F636B2F636C6F636B,0x312065663430386463622D626630342D343437662D613462362D63353162393834363236383720313739343936353238323733312031373934393730333837353939202D),
(0x626C6F636B2F73636F70652D726F75746573,0x30),
(0x626C6F636B2F73636F706573,0x30),
(0x65706F6368,0x312031373934393730333837353831),
(0x6F6C646573745F70726F6772616D,0x31),
(0x736368656D615F76657273696F6E,0x35),
(0x736563726574,0x20924CFE696279E93226A974E0B4606C9DA3B66368C12A5CCCF1DAC08F594845);
/*!40000 ALTER TABLE `onlyonce_meta` ENABLE KEYS */;
UNLOCK TABLES;
DROP TABLE IF EXISTS `onlyonce_natural_keys`;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `onlyonce_natural_keys` (
  `id` binary(32) NOT NULL,
  `made_at` bigint(20) NOT NULL,
  PRIMARY KEY (`id`),
  KEY `natural_keys_by_age` (`made_at`)
) ENGINE=InnoDB DEFAULT CHARSET=latin1 COLLATE=latin1_swedish_ci;
/*!40101 SET character_set_client = @saved_cs_client */;

LOCK TABLES `onlyonce_natural_keys` WRITE;
/*!40000 ALTER TABLE `onlyonce_natural_keys` DISABLE KEYS */;
/*!40000 ALTER TABLE `onlyonce_natural_keys` ENABLE KEYS */;
UNLOCK TABLES;
DROP TABLE IF EXISTS `onlyonce_outbox`;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `onlyonce_outbox` (
  `n` bigint(20) NOT NULL AUTO_INCREMENT,
  `id` binary(16) NOT NULL,
  `created_at` bigint(20) NOT NULL,
  `due_at` bigint(20) NOT NULL,
  `claimed_at` bigint(20) DEFAULT NULL,
  `unclear_since` bigint(20) DEFAULT NULL,
  `delivered_at` bigint(20) DEFAULT NULL,
  `attempts` int(11) NOT NULL DEFAULT 0,
  `attempt_id` binary(16) DEFAULT NULL,
  `key_id` binary(16) DEFAULT NULL,
  `settles` varbinary(128) DEFAULT NULL,
  `state` varbinary(20) NOT NULL DEFAULT 'pending',
  `target` varbinary(255) NOT NULL,
  `aggregatetype` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin DEFAULT NULL,
  `aggregateid` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin DEFAULT NULL,
  `type` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT '',
  `ordering_key` varbinary(512) DEFAULT NULL,
  `in_order` varbinary(512) DEFAULT NULL,
  `downstream_key` mediumblob NOT NULL,
  `provider_id` mediumblob DEFAULT NULL,
  `last_error` mediumblob DEFAULT NULL,
  `headers` mediumblob NOT NULL,
  `payload` longblob NOT NULL,
  PRIMARY KEY (`n`),
  UNIQUE KEY `outbox_by_id` (`id`),
  KEY `outbox_due` (`target`,`state`,`due_at`),
  KEY `outbox_in_order` (`target`,`in_order`),
  KEY `outbox_by_state` (`state`)
) ENGINE=InnoDB DEFAULT CHARSET=latin1 COLLATE=latin1_swedish_ci ROW_FORMAT=DYNAMIC;
/*!40101 SET character_set_client = @saved_cs_client */;

LOCK TABLES `onlyonce_outbox` WRITE;
/*!40000 ALTER TABLE `onlyonce_outbox` DISABLE KEYS */;
/*!40000 ALTER TABLE `onlyonce_outbox` ENABLE KEYS */;
UNLOCK TABLES;
DROP TABLE IF EXISTS `onlyonce_phases`;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `onlyonce_phases` (
  `id` binary(16) NOT NULL,
  `operation` varbinary(255) NOT NULL,
  `point` varbinary(255) NOT NULL,
  `intent` varbinary(255) DEFAULT NULL,
  `provider_id` mediumblob DEFAULT NULL,
  `parameters` longblob NOT NULL,
  `data` longblob NOT NULL,
  `attempt_id` binary(16) NOT NULL,
  `generation` int(11) NOT NULL,
  `updated_at` bigint(20) NOT NULL,
  `finished` tinyint(4) NOT NULL,
  PRIMARY KEY (`id`),
  KEY `phases_unfinished` (`operation`,`finished`,`updated_at`)
) ENGINE=InnoDB DEFAULT CHARSET=latin1 COLLATE=latin1_swedish_ci ROW_FORMAT=DYNAMIC;
/*!40101 SET character_set_client = @saved_cs_client */;

LOCK TABLES `onlyonce_phases` WRITE;
/*!40000 ALTER TABLE `onlyonce_phases` DISABLE KEYS */;
/*!40000 ALTER TABLE `onlyonce_phases` ENABLE KEYS */;
UNLOCK TABLES;
DROP TABLE IF EXISTS `onlyonce_readable_keys`;
/*!50001 DROP VIEW IF EXISTS `onlyonce_readable_keys`*/;
SET @saved_cs_client     = @@character_set_client;
SET character_set_client = utf8mb4;
/*!50001 CREATE VIEW `onlyonce_readable_keys` AS SELECT
 NULL AS `n`,
 NULL AS `scope`,
 NULL AS `key`,
 NULL AS `state`,
 NULL AS `route`,
 NULL AS `method`,
 NULL AS `path`,
 NULL AS `attempt`,
 NULL AS `generation`,
 NULL AS `last_error`,
 NULL AS `dead_letter`,
 NULL AS `response_status`,
 NULL AS `response_bytes`,
 NULL AS `revision`,
 NULL AS `created_at`,
 NULL AS `last_run_at`,
 NULL AS `completed_at`,
 NULL AS `expires_at`,
 NULL AS `lease_until`,
 NULL AS `unknown_since`,
 NULL AS `reconcile_after`,
 NULL AS `delete_at`,
 NULL AS `id`,
 NULL AS `attempt_id` */;
SET character_set_client = @saved_cs_client;
DROP TABLE IF EXISTS `onlyonce_recipes`;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `onlyonce_recipes` (
  `id` binary(8) NOT NULL,
  `recipe` blob NOT NULL,
  PRIMARY KEY (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=latin1 COLLATE=latin1_swedish_ci;
/*!40101 SET character_set_client = @saved_cs_client */;

LOCK TABLES `onlyonce_recipes` WRITE;
/*!40000 ALTER TABLE `onlyonce_recipes` DISABLE KEYS */;
INSERT INTO `onlyonce_recipes` VALUES
(0x1C7E0F6DEDEE5E17,0x020000000000000000000000000000000000000000000000001A000000000000000E6163636570742D76657273696F6E000000000000000A6163636F756E742D6964000000000000000B6170692D76657273696F6E000000000000000C636F6E74656E742D74797065000000000000000869662D6D61746368000000000000000D69662D6E6F6E652D6D61746368000000000000000B6D65726368616E742D6964000000000000000C6F6E2D626568616C662D6F66000000000000000F6F7267616E697A6174696F6E2D6964000000000000000974656E616E742D69640000000000000009782D6163636F756E74000000000000000C782D6163636F756E742D69640000000000000008782D6163742D6173000000000000000D782D6170692D76657273696F6E000000000000000A782D6D65726368616E740000000000000012782D6D65726368616E742D6163636F756E74000000000000000D782D6D65726368616E742D6964000000000000000E782D6F6E2D626568616C662D6F660000000000000008782D6F72672D69640000000000000011782D6F7267616E69736174696F6E2D6964000000000000000E782D6F7267616E697A6174696F6E0000000000000011782D6F7267616E697A6174696F6E2D69640000000000000008782D74656E616E74000000000000000B782D74656E616E742D69640000000000000009782D76657273696F6E000000000000000E782D776F726B73706163652D69640100000000000000000000000000000000);
/*!40000 ALTER TABLE `onlyonce_recipes` ENABLE KEYS */;
UNLOCK TABLES;
DROP TABLE IF EXISTS `onlyonce_scopes`;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `onlyonce_scopes` (
  `id` binary(16) NOT NULL,
  `name` blob NOT NULL,
  PRIMARY KEY (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=latin1 COLLATE=latin1_swedish_ci;
/*!40101 SET character_set_client = @saved_cs_client */;

LOCK TABLES `onlyonce_scopes` WRITE;
/*!40000 ALTER TABLE `onlyonce_scopes` DISABLE KEYS */;
INSERT INTO `onlyonce_scopes` VALUES
(0xD7ED219321DC4958D9EA27A51EBEA29B,0x676C6F62616C);
/*!40000 ALTER TABLE `onlyonce_scopes` ENABLE KEYS */;
UNLOCK TABLES;
/*!50001 DROP VIEW IF EXISTS `onlyonce_readable_keys`*/;
/*!50001 SET @saved_cs_client          = @@character_set_client */;
/*!50001 SET @saved_cs_results         = @@character_set_results */;
/*!50001 SET @saved_col_connection     = @@collation_connection */;
/*!50001 SET character_set_client      = utf8mb4 */;
/*!50001 SET character_set_results     = utf8mb4 */;
/*!50001 SET collation_connection      = utf8mb4_general_ci */;
/*!50001 CREATE ALGORITHM=UNDEFINED */
/*!50013 DEFINER=`onlyonce`@`127.0.0.1` SQL SECURITY DEFINER */
/*!50001 VIEW `onlyonce_readable_keys` AS select `onlyonce_keys`.`n` AS `n`,convert(`onlyonce_keys`.`scope` using utf8mb4) AS `scope`,convert(`onlyonce_keys`.`key` using utf8mb4) AS `key`,convert(`onlyonce_keys`.`state` using utf8mb4) AS `state`,convert(`onlyonce_keys`.`route` using utf8mb4) AS `route`,convert(`onlyonce_keys`.`method` using utf8mb4) AS `method`,convert(`onlyonce_keys`.`path` using utf8mb4) AS `path`,`onlyonce_keys`.`fence` AS `attempt`,`onlyonce_keys`.`generation` AS `generation`,convert(`onlyonce_keys`.`last_error` using utf8mb4) AS `last_error`,`onlyonce_keys`.`dead_letter` AS `dead_letter`,`onlyonce_keys`.`response_status` AS `response_status`,`onlyonce_keys`.`response_bytes` AS `response_bytes`,`onlyonce_keys`.`revision` AS `revision`,'1970-01-01' + interval `onlyonce_keys`.`created_at` * 1000 microsecond AS `created_at`,'1970-01-01' + interval `onlyonce_keys`.`last_run_at` * 1000 microsecond AS `last_run_at`,'1970-01-01' + interval `onlyonce_keys`.`completed_at` * 1000 microsecond AS `completed_at`,'1970-01-01' + interval `onlyonce_keys`.`expires_at` * 1000 microsecond AS `expires_at`,'1970-01-01' + interval `onlyonce_keys`.`lease_until` * 1000 microsecond AS `lease_until`,'1970-01-01' + interval `onlyonce_keys`.`unknown_since` * 1000 microsecond AS `unknown_since`,'1970-01-01' + interval `onlyonce_keys`.`reconcile_after` * 1000 microsecond AS `reconcile_after`,'1970-01-01' + interval `onlyonce_keys`.`delete_at` * 1000 microsecond AS `delete_at`,lcase(hex(`onlyonce_keys`.`id`)) AS `id`,lcase(hex(`onlyonce_keys`.`attempt_id`)) AS `attempt_id` from `onlyonce_keys` */;
/*!50001 SET character_set_client      = @saved_cs_client */;
/*!50001 SET character_set_results     = @saved_cs_results */;
/*!50001 SET collation_connection      = @saved_col_connection */;
/*!40103 SET TIME_ZONE=@OLD_TIME_ZONE */;

/*!40101 SET SQL_MODE=@OLD_SQL_MODE */;
/*!40014 SET FOREIGN_KEY_CHECKS=@OLD_FOREIGN_KEY_CHECKS */;
/*!40014 SET UNIQUE_CHECKS=@OLD_UNIQUE_CHECKS */;
/*!40101 SET CHARACTER_SET_CLIENT=@OLD_CHARACTER_SET_CLIENT */;
/*!40101 SET CHARACTER_SET_RESULTS=@OLD_CHARACTER_SET_RESULTS */;
/*!40101 SET COLLATION_CONNECTION=@OLD_COLLATION_CONNECTION */;
/*!40111 SET SQL_NOTES=@OLD_SQL_NOTES */;

